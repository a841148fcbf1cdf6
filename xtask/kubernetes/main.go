// A client of Kubernetes for the lab. It creates, updates and deletes ConfigMaps and checks every answer, while an informer follows
// them, as in a controller. A second writer puts a key directly into etcd, for comparison.
//
// It reads commands from stdin, one per line, and answers each with one line of JSON on stdout:
//
//	phase NAME   end the current phase, report on it, and begin another
//	pause        finish the current write and begin no other; the time counts as a gap
//	resume       write again
//	remember     keep what must exist now, for `restored` (while paused)
//	restored     from now on, what was remembered must exist, and nothing else (while paused)
//	check        compare what must exist with a fresh list, with etcd's keys and with the informer's cache
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	namespace = "lab"
	// Where kube-apiserver keeps our objects.
	prefix = "/registry/configmaps/" + namespace + "/"
	// How long one request may take. etcd itself gives up after 7 s: what it does is measured, not what the client does.
	patience = 10 * time.Second
	// How long a write is tried again before it counts as lost.
	givingUp = 3 * time.Minute
	// How long the informer may need to catch up. Its own pause between attempts grows to 30 s.
	catchingUp = 90 * time.Second
	pace       = 10 * time.Millisecond
)

var (
	kubeconfig = flag.String("kubeconfig", "", "how to reach the API server")
	endpoints  = flag.String("endpoints", "", "etcd's members, separated by commas")
	cacert     = flag.String("cacert", "", "etcd's CA")
	cert       = flag.String("cert", "", "a certificate of etcd's user root")
	key        = flag.String("key", "", "its key")
)

// problems that were found and not reported yet.
type problems struct {
	sync.Mutex
	found []string
}

func (p *problems) add(format string, a ...any) {
	p.Lock()
	defer p.Unlock()
	if len(p.found) < 50 {
		p.found = append(p.found, fmt.Sprintf(format, a...))
	}
}

func (p *problems) take() []string {
	p.Lock()
	defer p.Unlock()
	taken := append([]string{}, p.found...)
	p.found = nil
	return taken
}

type lab struct {
	problems problems
	api      *apiWriter
	etcd     *etcdWriter
	follower *follower
	paused   bool
	// What must exist after a restore.
	remembered map[string]object
	phase      string
}

func main() {
	flag.Parse()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run() error {
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 1000, 1000
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	etcd, err := connect()
	if err != nil {
		return err
	}
	defer etcd.Close()
	l := &lab{}
	l.api = newAPIWriter(client, &l.problems)
	l.etcd = newEtcdWriter(etcd)
	if l.follower, err = follow(client, &l.problems); err != nil {
		return err
	}
	go l.api.run()
	go l.etcd.run()
	return l.obey()
}

func (l *lab) obey() error {
	answers := json.NewEncoder(os.Stdout)
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		word, rest, _ := strings.Cut(commands.Text(), " ")
		var answer any
		switch word {
		case "phase":
			answer = l.nextPhase(rest)
		case "pause":
			answer = l.pause()
		case "resume":
			answer = l.resume()
		case "remember":
			l.remembered = maps.Clone(l.api.exists)
			l.follower.mayReturn(l.remembered)
			answer = map[string]any{"objects": len(l.remembered)}
		case "restored":
			l.api.restored(l.remembered)
			answer = map[string]any{"objects": len(l.api.exists)}
		case "check":
			answer = l.check()
		default:
			return fmt.Errorf("there is no command %q", word)
		}
		if err := answers.Encode(answer); err != nil {
			return err
		}
	}
	return commands.Err()
}

// nextPhase waits for one more write of each writer, so that a gap never spans two phases.
func (l *lab) nextPhase(name string) any {
	ended := map[string]any{"phase": l.phase, "api": l.api.times.next(), "etcd": l.etcd.times.next()}
	l.phase = name
	return ended
}

func (l *lab) pause() any {
	l.api.gate.Lock()
	l.etcd.gate.Lock()
	l.paused = true
	return map[string]any{"paused": true}
}

func (l *lab) resume() any {
	l.paused = false
	l.etcd.gate.Unlock()
	l.api.gate.Unlock()
	return map[string]any{"paused": false}
}

// check compares while nothing is written. The time that it takes counts as no gap.
func (l *lab) check() any {
	if !l.paused {
		l.pause()
		defer l.resume()
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), catchingUp)
	defer cancel()
	l.untilAnswered(ctx, "a fresh list", l.api.compareWithList)
	l.untilAnswered(ctx, "a read from etcd", l.compareWithEtcd)
	l.follower.compare(ctx, l.api.exists)
	l.api.times.skip(time.Since(began))
	l.etcd.times.skip(time.Since(began))
	return map[string]any{
		"problems": l.problems.take(),
		"objects":  len(l.api.exists),
		"informer": l.follower.counts(),
	}
}

// untilAnswered repeats what gets no answer. The first answer counts.
func (l *lab) untilAnswered(ctx context.Context, what string, ask func(context.Context) error) {
	for {
		attempt, cancel := context.WithTimeout(ctx, patience)
		err := ask(attempt)
		cancel()
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			l.problems.add("%s: no answer for %v: %v", what, catchingUp, err)
			return
		}
		time.Sleep(pace)
	}
}

// compareWithEtcd finds what the API server shows but etcd does not have, or has in another revision.
func (l *lab) compareWithEtcd(ctx context.Context) error {
	found, err := l.etcd.client.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return err
	}
	stored := map[string]string{}
	for _, pair := range found.Kvs {
		stored[strings.TrimPrefix(string(pair.Key), prefix)] = fmt.Sprint(pair.ModRevision)
	}
	for name, object := range l.api.exists {
		if stored[name] != object.version {
			l.problems.add("etcd has %s in revision %q, and version %s was acknowledged", name, stored[name], object.version)
		}
	}
	if len(stored) != len(l.api.exists) {
		l.problems.add("etcd has %d objects, and %d must exist", len(stored), len(l.api.exists))
	}
	return nil
}
