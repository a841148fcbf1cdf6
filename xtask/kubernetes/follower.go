package main

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// follower is an informer, and what a controller would know from its events alone.
type follower struct {
	informer cache.SharedIndexInformer
	problems *problems

	sync.Mutex
	known map[string]object
	// What a restore may bring back.
	restorable                      map[string]object
	added, updated, deleted, failed int
	// How often a watch could not continue, so that everything was listed again.
	expired int
	newest  uint64
}

func follow(client kubernetes.Interface, problems *problems) (*follower, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	f := &follower{informer: factory.Core().V1().ConfigMaps().Informer(), problems: problems, known: map[string]object{}}
	if err := f.informer.SetWatchErrorHandler(f.watchFailed); err != nil {
		return nil, err
	}
	handler := cache.ResourceEventHandlerFuncs{AddFunc: f.onAdd, UpdateFunc: f.onUpdate, DeleteFunc: f.onDelete}
	if _, err := f.informer.AddEventHandler(handler); err != nil {
		return nil, err
	}
	factory.Start(make(chan struct{}))
	waiting, cancel := context.WithTimeout(context.Background(), catchingUp)
	defer cancel()
	if !cache.WaitForCacheSync(waiting.Done(), f.informer.HasSynced) {
		return nil, fmt.Errorf("the informer has no list after %v", catchingUp)
	}
	go f.watchTime()
	return f, nil
}

func (f *follower) watchFailed(_ *cache.Reflector, err error) {
	f.Lock()
	defer f.Unlock()
	f.failed++
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		f.expired++
	}
}

func (f *follower) onAdd(added any) {
	f.Lock()
	defer f.Unlock()
	f.added++
	found := added.(*corev1.ConfigMap)
	if known, there := f.known[found.Name]; there {
		f.problems.add("the informer saw %s created twice: %v, then %v", found.Name, known, acknowledged(found))
	}
	f.known[found.Name] = acknowledged(found)
}

func (f *follower) onUpdate(before, after any) {
	f.Lock()
	defer f.Unlock()
	f.updated++
	old, found := before.(*corev1.ConfigMap), after.(*corev1.ConfigMap)
	if known, there := f.known[found.Name]; !there || known != acknowledged(old) {
		f.problems.add("the informer saw %s change from %v, and had %v", found.Name, acknowledged(old), known)
	}
	// The objects of a backup have the versions that they had then.
	if version(found.ResourceVersion) < version(old.ResourceVersion) && acknowledged(found) != f.restorable[found.Name] {
		f.problems.add("the informer saw %s go back from version %s to %s", found.Name, old.ResourceVersion, found.ResourceVersion)
	}
	f.known[found.Name] = acknowledged(found)
}

func (f *follower) onDelete(deleted any) {
	f.Lock()
	defer f.Unlock()
	f.deleted++
	if unknown, lost := deleted.(cache.DeletedFinalStateUnknown); lost {
		deleted = unknown.Obj
	}
	found := deleted.(*corev1.ConfigMap)
	if _, there := f.known[found.Name]; !there {
		f.problems.add("the informer saw %s deleted twice", found.Name)
	}
	delete(f.known, found.Name)
}

// mayReturn says which objects a restore may bring back, from now on.
func (f *follower) mayReturn(objects map[string]object) {
	f.Lock()
	defer f.Unlock()
	f.restorable = maps.Clone(objects)
}

// watchTime finds versions of the whole that go back.
func (f *follower) watchTime() {
	for range time.Tick(pace) {
		now := version(f.informer.LastSyncResourceVersion())
		f.Lock()
		if now != 0 && now < f.newest {
			f.problems.add("the informer went back from version %d to %d", f.newest, now)
		}
		f.newest = max(f.newest, now)
		f.Unlock()
	}
}

func version(text string) uint64 {
	number, _ := strconv.ParseUint(text, 10, 64)
	return number
}

// compare waits until the cache, and what the events told, are what must exist.
func (f *follower) compare(ctx context.Context, exists map[string]object) {
	for {
		var different []string
		report := func(format string, a ...any) { different = append(different, fmt.Sprintf(format, a...)) }
		compare("the informer's cache", f.cached(), exists, report)
		f.Lock()
		if len(f.known) != len(exists) {
			report("the informer's events amount to %d objects, and %d must exist", len(f.known), len(exists))
		}
		for name, known := range f.known {
			if known != exists[name] {
				report("the informer's events amount to %s as %v, and %v was acknowledged", name, known, exists[name])
			}
		}
		f.Unlock()
		if len(different) == 0 {
			return
		}
		if ctx.Err() != nil {
			for _, text := range different {
				f.problems.add("%s", text)
			}
			return
		}
		time.Sleep(pace)
	}
}

func (f *follower) cached() []corev1.ConfigMap {
	var items []corev1.ConfigMap
	for _, item := range f.informer.GetStore().List() {
		items = append(items, *item.(*corev1.ConfigMap))
	}
	return items
}

func (f *follower) counts() any {
	f.Lock()
	defer f.Unlock()
	return map[string]any{
		"added": f.added, "updated": f.updated, "deleted": f.deleted, "failed": f.failed, "expired": f.expired,
		"version": f.newest,
	}
}
