package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
)

// Most objects that exist at the same time.
const most = 50

// times counts acknowledged writes and finds the longest time between two of them.
type times struct {
	sync.Mutex
	acknowledged *sync.Cond
	last         time.Time
	longest      time.Duration
	writes       int
	failures     int
	lastFailure  string
}

func newTimes() *times {
	t := &times{last: time.Now()}
	t.acknowledged = sync.NewCond(t)
	return t
}

func (t *times) success() {
	t.Lock()
	defer t.Unlock()
	now := time.Now()
	t.longest = max(t.longest, now.Sub(t.last))
	t.last = now
	t.writes++
	t.acknowledged.Broadcast()
}

func (t *times) failure(err error) {
	t.Lock()
	defer t.Unlock()
	t.failures++
	t.lastFailure = err.Error()
}

// skip leaves a time without writes out of the account.
func (t *times) skip(time time.Duration) {
	t.Lock()
	defer t.Unlock()
	t.last = t.last.Add(time)
}

// next reports after the next write, and counts from zero.
func (t *times) next() any {
	t.Lock()
	defer t.Unlock()
	for before := t.writes; t.writes == before; {
		t.acknowledged.Wait()
	}
	report := map[string]any{
		"writes": t.writes, "failures": t.failures, "last_failure": t.lastFailure,
		"longest_gap_ms": t.longest.Milliseconds(),
	}
	t.longest, t.writes, t.failures, t.lastFailure = 0, 0, 0, ""
	return report
}

// object is what was acknowledged of a ConfigMap.
type object struct {
	number  string
	uid     types.UID
	version string
}

func acknowledged(found *corev1.ConfigMap) object {
	return object{number: found.Data["number"], uid: found.UID, version: found.ResourceVersion}
}

// apiWriter is the only one who writes in its namespace, so it knows what must exist.
type apiWriter struct {
	maps     typed.ConfigMapInterface
	problems *problems
	times    *times
	gate     sync.Mutex
	exists   map[string]object
	// In the order of creation, with names that may be deleted already.
	names  []string
	number int
	random *rand.Rand
}

func newAPIWriter(client kubernetes.Interface, problems *problems) *apiWriter {
	return &apiWriter{
		maps: client.CoreV1().ConfigMaps(namespace), problems: problems, times: newTimes(), exists: map[string]object{},
		random: rand.New(rand.NewSource(1)),
	}
}

func (w *apiWriter) run() {
	for round := 1; ; round++ {
		w.gate.Lock()
		w.step(round)
		w.gate.Unlock()
		time.Sleep(pace)
	}
}

func (w *apiWriter) step(round int) {
	names := w.existing()
	switch {
	case round%3 == 0 || len(names) == 0:
		w.create(fmt.Sprintf("item-%d", round))
	case round%3 == 1 && len(names) > most:
		w.delete(names[0])
	default:
		w.update(names[w.random.Intn(len(names))])
	}
	if names := w.existing(); round%10 == 0 && len(names) > 0 {
		w.createAgain(names[0])
		w.read(names[len(names)-1])
	}
	if round%100 == 0 {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := w.compareWithList(ctx); err != nil {
			w.times.failure(err)
		}
	}
}

// restored continues with other objects.
func (w *apiWriter) restored(exists map[string]object) {
	w.exists = maps.Clone(exists)
	w.names = slices.Sorted(maps.Keys(exists))
}

// existing names, oldest first.
func (w *apiWriter) existing() []string {
	w.names = slices.DeleteFunc(w.names, func(name string) bool { _, exists := w.exists[name]; return !exists })
	return w.names
}

// try repeats a request until its outcome is known. What an attempt without an answer did is for the request to find out.
func (w *apiWriter) try(what string, request func(ctx context.Context, again bool) (bool, error)) {
	began := time.Now()
	for attempt := 0; ; attempt++ {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		done, err := request(ctx, attempt > 0)
		cancel()
		if done {
			w.times.success()
			return
		}
		w.times.failure(err)
		if time.Since(began) > givingUp {
			w.problems.add("%s: without an answer for %v: %v", what, givingUp, err)
			return
		}
		time.Sleep(2 * pace)
	}
}

func (w *apiWriter) next() map[string]string {
	w.number++
	return map[string]string{"number": strconv.Itoa(w.number)}
}

func (w *apiWriter) create(name string) {
	wanted := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: w.next()}
	w.names = append(w.names, name)
	w.try("create "+name, func(ctx context.Context, again bool) (bool, error) {
		found, err := w.maps.Create(ctx, wanted, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			if found, err = w.maps.Get(ctx, name, metav1.GetOptions{}); err != nil {
				return false, err
			}
			if !again || found.Data["number"] != wanted.Data["number"] {
				w.problems.add("create %s: it exists already, with number %s", name, found.Data["number"])
			}
		}
		if err != nil {
			return false, err
		}
		w.exists[name] = acknowledged(found)
		return true, nil
	})
}

func (w *apiWriter) update(name string) {
	known := w.exists[name]
	wanted := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: known.version}, Data: w.next()}
	w.try("update "+name, func(ctx context.Context, again bool) (bool, error) {
		found, err := w.maps.Update(ctx, wanted, metav1.UpdateOptions{})
		if apierrors.IsConflict(err) {
			if found, err = w.maps.Get(ctx, name, metav1.GetOptions{}); err != nil {
				return false, err
			}
			if !again || found.Data["number"] != wanted.Data["number"] {
				w.problems.add("update %s: it has number %s, and %s was acknowledged", name, found.Data["number"], known.number)
			}
		}
		if apierrors.IsNotFound(err) {
			w.problems.add("update %s: it does not exist, and number %s was acknowledged", name, known.number)
			delete(w.exists, name)
			return true, nil
		}
		if err != nil {
			return false, err
		}
		w.exists[name] = acknowledged(found)
		return true, nil
	})
}

func (w *apiWriter) delete(name string) {
	known := w.exists[name]
	options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &known.uid, ResourceVersion: &known.version}}
	w.try("delete "+name, func(ctx context.Context, again bool) (bool, error) {
		err := w.maps.Delete(ctx, name, options)
		switch {
		case apierrors.IsNotFound(err):
			if !again {
				w.problems.add("delete %s: it does not exist, and number %s was acknowledged", name, known.number)
			}
		case apierrors.IsConflict(err):
			w.problems.add("delete %s: it is not what was acknowledged: %v", name, err)
		case err != nil:
			return false, err
		}
		delete(w.exists, name)
		return true, nil
	})
}

// createAgain must be refused: the object exists.
func (w *apiWriter) createAgain(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	wanted := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: w.next()}
	if found, err := w.maps.Create(ctx, wanted, metav1.CreateOptions{}); err == nil {
		w.problems.add("create %s: it was created a second time", name)
		w.exists[name] = acknowledged(found)
	}
}

// read must find what was acknowledged.
func (w *apiWriter) read(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	found, err := w.maps.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		w.problems.add("read %s: it does not exist, and number %s was acknowledged", name, w.exists[name].number)
	case err == nil && acknowledged(found) != w.exists[name]:
		w.problems.add("read %s: found %v, and %v was acknowledged", name, acknowledged(found), w.exists[name])
	}
}

// compareWithList lists without a version, which must show everything that was acknowledged.
func (w *apiWriter) compareWithList(ctx context.Context) error {
	listed, err := w.maps.List(ctx, metav1.ListOptions{})
	if err == nil {
		compare("a fresh list", listed.Items, w.exists, w.problems.add)
	}
	return err
}

func compare(where string, found []corev1.ConfigMap, exists map[string]object, report func(string, ...any)) {
	for _, item := range found {
		if known, there := exists[item.Name]; !there {
			report("%s has %s, which must not exist", where, item.Name)
		} else if known != acknowledged(&item) {
			report("%s has %s as %v, and %v was acknowledged", where, item.Name, acknowledged(&item), known)
		}
	}
	if len(found) != len(exists) {
		report("%s has %d objects, and %d must exist", where, len(found), len(exists))
	}
}

// etcdWriter puts one key again and again, without Kubernetes.
type etcdWriter struct {
	client *clientv3.Client
	times  *times
	gate   sync.Mutex
}

func connect() (*clientv3.Client, error) {
	info := transport.TLSInfo{TrustedCAFile: *cacert, CertFile: *cert, KeyFile: *key}
	config, err := info.ClientConfig()
	if err != nil {
		return nil, err
	}
	return clientv3.New(clientv3.Config{
		Endpoints: strings.Split(*endpoints, ","), TLS: config,
		// As kube-apiserver has it.
		DialKeepAliveTime: 30 * time.Second, DialKeepAliveTimeout: 10 * time.Second,
	})
}

func newEtcdWriter(client *clientv3.Client) *etcdWriter {
	return &etcdWriter{client: client, times: newTimes()}
}

func (w *etcdWriter) run() {
	for number := 1; ; number++ {
		w.gate.Lock()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		_, err := w.client.Put(ctx, "/quorate-lab/number", strconv.Itoa(number))
		cancel()
		if err == nil {
			w.times.success()
		} else {
			w.times.failure(err)
		}
		w.gate.Unlock()
		time.Sleep(pace)
	}
}
