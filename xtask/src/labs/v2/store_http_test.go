// etcd's store of v2, for the tests of that store, as an HTTP client of the v2 API at V2_URL sees it. Indexes are counted from that of
// the first request, because the tests begin at 0.
package v2store_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/etcdserver/api/v2error"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v2store"
)

const watched = 100

type httpStore struct {
	// What has no counterpart in the API panics.
	v2store.Store
	base   uint64
	ctx    context.Context
	cancel context.CancelFunc
}

func newTestStore(t *testing.T, _ ...string) StoreCloser {
	ctx, cancel := context.WithCancel(context.Background())
	store := &httpStore{ctx: ctx, cancel: cancel}
	first, err := store.Get("/", false, false)
	if err != nil {
		t.Fatal(err)
	}
	store.base = first.EtcdIndex
	return store
}

func (s *httpStore) Close() {
	s.cancel()
	http.DefaultClient.CloseIdleConnections()
}

func (s *httpStore) send(method, path string, form url.Values) (*http.Response, error) {
	place := url.URL{Path: "/v2/keys" + path}
	var body io.Reader
	at := os.Getenv("V2_URL") + place.EscapedPath()
	if method == "PUT" || method == "POST" {
		body = strings.NewReader(form.Encode())
	} else {
		at += "?" + form.Encode()
	}
	request, err := http.NewRequestWithContext(s.ctx, method, at, body)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return http.DefaultClient.Do(request)
}

// From what the API shows to what the store shows.
func (s *httpStore) counted(node *v2store.NodeExtern) {
	if node == nil {
		return
	}
	for _, index := range []*uint64{&node.ModifiedIndex, &node.CreatedIndex} {
		if *index != 0 {
			*index -= s.base
		}
	}
	for _, inner := range node.Nodes {
		s.counted(inner)
	}
}

func (s *httpStore) event(decoder *json.Decoder) (*v2store.Event, error) {
	event := &v2store.Event{}
	if err := decoder.Decode(event); err != nil {
		return nil, err
	}
	s.counted(event.Node)
	s.counted(event.PrevNode)
	return event, nil
}

func (s *httpStore) ask(method, path string, form url.Values) (*v2store.Event, error) {
	response, err := s.send(method, path, form)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	decoder := json.NewDecoder(response.Body)
	if response.StatusCode >= 300 {
		refused := &v2error.Error{}
		if err := decoder.Decode(refused); err != nil {
			return nil, err
		}
		refused.Index -= s.base
		return nil, refused
	}
	event, err := s.event(decoder)
	if err != nil {
		return nil, err
	}
	index, err := strconv.ParseUint(response.Header.Get("X-Etcd-Index"), 10, 64)
	event.EtcdIndex = index - s.base
	return event, err
}

func values(dir bool, value string, ttl v2store.TTLOptionSet) url.Values {
	form := url.Values{}
	if dir {
		form.Set("dir", "true")
	} else {
		form.Set("value", value)
	}
	if !ttl.ExpireTime.IsZero() {
		form.Set("ttl", fmt.Sprint(int(time.Until(ttl.ExpireTime).Seconds())))
	}
	return form
}

func compared(form url.Values, value string, index uint64) url.Values {
	if value != "" {
		form.Set("prevValue", value)
	}
	if index != 0 {
		form.Set("prevIndex", fmt.Sprint(index))
	}
	return form
}

func (s *httpStore) Get(path string, recursive, sorted bool) (*v2store.Event, error) {
	form := url.Values{"recursive": {fmt.Sprint(recursive)}, "sorted": {fmt.Sprint(sorted)}}
	return s.ask("GET", path, form)
}

func (s *httpStore) Set(path string, dir bool, value string, ttl v2store.TTLOptionSet) (*v2store.Event, error) {
	return s.ask("PUT", path, values(dir, value, ttl))
}

func (s *httpStore) Update(path string, value string, ttl v2store.TTLOptionSet) (*v2store.Event, error) {
	form := values(false, value, ttl)
	form.Set("prevExist", "true")
	return s.ask("PUT", path, form)
}

func (s *httpStore) Create(path string, dir bool, value string, unique bool, ttl v2store.TTLOptionSet) (*v2store.Event, error) {
	form := values(dir, value, ttl)
	if unique {
		return s.ask("POST", path, form)
	}
	form.Set("prevExist", "false")
	return s.ask("PUT", path, form)
}

func (s *httpStore) CompareAndSwap(path string, before string, index uint64, value string, ttl v2store.TTLOptionSet) (*v2store.Event, error) {
	if index != 0 {
		index += s.base
	}
	return s.ask("PUT", path, compared(values(false, value, ttl), before, index))
}

func (s *httpStore) Delete(path string, dir, recursive bool) (*v2store.Event, error) {
	form := url.Values{"dir": {fmt.Sprint(dir)}, "recursive": {fmt.Sprint(recursive)}}
	return s.ask("DELETE", path, form)
}

func (s *httpStore) CompareAndDelete(path string, value string, index uint64) (*v2store.Event, error) {
	if index != 0 {
		index += s.base
	}
	return s.ask("DELETE", path, compared(url.Values{}, value, index))
}

type httpWatcher struct {
	events chan *v2store.Event
	start  uint64
	body   io.Closer
}

func (w *httpWatcher) EventChan() chan *v2store.Event { return w.events }

func (w *httpWatcher) StartIndex() uint64 { return w.start }

func (w *httpWatcher) Remove() { w.body.Close() }

// Returns when the answer has begun, because the watch has then, too.
func (s *httpStore) Watch(path string, recursive, stream bool, since uint64) (v2store.Watcher, error) {
	form := url.Values{"wait": {"true"}, "recursive": {fmt.Sprint(recursive)}, "stream": {fmt.Sprint(stream)}}
	if since != 0 {
		form.Set("waitIndex", fmt.Sprint(since+s.base))
	}
	response, err := s.send("GET", path, form)
	if err != nil {
		return nil, err
	}
	index, err := strconv.ParseUint(response.Header.Get("X-Etcd-Index"), 10, 64)
	watcher := &httpWatcher{make(chan *v2store.Event, watched), index - s.base, response.Body}
	go func() {
		decoder := json.NewDecoder(response.Body)
		for {
			event, err := s.event(decoder)
			if err != nil {
				return
			}
			event.EtcdIndex = event.Node.ModifiedIndex
			select {
			case watcher.events <- event:
			default:
				// As the store ends watches that nobody reads.
				response.Body.Close()
				return
			}
		}
	}()
	return watcher, err
}
