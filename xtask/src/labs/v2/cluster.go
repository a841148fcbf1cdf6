// Package integration replaces the one of etcd that starts clusters for its tests. Here V2_URL says where one serves.
package integration

import (
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/client/v2"
)

const URLScheme = "http"

type Cluster struct{}

func BeforeTest(testing.TB) {}

func NewCluster(testing.TB, int) Cluster { return Cluster{} }

func (Cluster) Launch(testing.TB) {}

func (Cluster) Terminate(testing.TB) {}

func (Cluster) URL(int) string { return os.Getenv("V2_URL") }

func NewListenerWithAddr(t testing.TB, address string) net.Listener {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

func newTransport() *http.Transport {
	made, err := transport.NewTransport(transport.TLSInfo{}, time.Second)
	if err != nil {
		panic(err)
	}
	// Connections that are kept open look like leaks to the tests.
	made.DisableKeepAlives = true
	return made
}

func MustNewHTTPClient(t testing.TB, endpoints []string, _ *transport.TLSInfo) client.Client {
	made, err := client.New(client.Config{Transport: newTransport(), Endpoints: endpoints})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

type LazyCluster struct{ Cluster }

func NewLazyCluster() LazyCluster { return LazyCluster{} }

func (LazyCluster) EndpointsV2() []string { return []string{os.Getenv("V2_URL")} }

func (LazyCluster) Transport() *http.Transport { return newTransport() }

func (LazyCluster) Terminate() {}
