//go:build cassandra

package faults

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"bowstring/internal/cassandratest"
	"bowstring/internal/freeport"
)

// cluster is three nodes, each behind two gates: one for other nodes, one for clients.
type cluster struct {
	nodes   [Nodes]*cassandratest.Node
	between [Nodes]*Gate
	clients [Nodes]*Gate
	clocks  [Nodes]string // files
	port    int
}

// nodeIP is the address by which other nodes know a node, where its gates listen.
func nodeIP(i int) string { return fmt.Sprintf("127.0.0.%d", i+1) }

func startCluster(t *testing.T, logs string) *cluster {
	t.Helper()
	c := &cluster{}
	var each [Nodes]cassandratest.Options
	c.port = freePort(t)
	storage := freePort(t)
	for i := range Nodes {
		behind := fmt.Sprintf("127.0.0.%d", i+11)
		at := func(ip string, port int) string { return net.JoinHostPort(ip, strconv.Itoa(port)) }
		for _, g := range []struct {
			gate  **Gate
			port  int
			nodes bool
		}{{&c.between[i], storage, true}, {&c.clients[i], c.port, false}} {
			gate, err := NewGate(at(nodeIP(i), g.port), at(behind, g.port), g.nodes)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := gate.Close(); err != nil {
					t.Error(err)
				}
			})
			*g.gate = gate
		}
		c.clocks[i] = filepath.Join(t.TempDir(), "clock")
		c.setClock(t, i, 0)
		each[i] = cassandratest.Options{
			IP: nodeIP(i), Listen: behind, Port: c.port, StoragePort: storage, Heap: "384m", Patience: 4 * time.Second,
			Clock: c.clocks[i], Log: filepath.Join(logs, fmt.Sprintf("node%d.log", i+1)),
		}
	}
	c.nodes = cassandratest.StartClusterOf(t, each)
	return c
}

func freePort(t *testing.T) int {
	t.Helper()
	port, err := freeport.On("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// address of a store on the cluster.
func (c *cluster) address() string {
	return fmt.Sprintf("cql://%s,%s,%s:%d/faults?rf=3&timeout=5s&connect=3s&conns=2", nodeIP(0), nodeIP(1), nodeIP(2),
		c.port)
}

// setClock makes a node's clock wrong, or right again. The library reads the file each second.
func (c *cluster) setClock(t *testing.T, node int, by time.Duration) {
	next := c.clocks[node] + ".next"
	err := os.WriteFile(next, fmt.Appendf(nil, "%+.1f\n", by.Seconds()), 0o600)
	if err == nil {
		err = os.Rename(next, c.clocks[node])
	}
	if err != nil {
		t.Error(err)
	}
}

// trouble sets what the fault does to the network.
func (c *cluster) trouble(f Fault, tr Trouble) {
	switch f.Kind {
	case Clients:
		c.clients[f.Node].Set("", tr)
	case OneWay:
		c.between[f.To].Set(nodeIP(f.Node), tr)
	default:
		for other := range Nodes {
			if other != f.Node {
				c.between[f.Node].Set(nodeIP(other), tr)
				c.between[other].Set(nodeIP(f.Node), tr)
			}
		}
	}
}

// nemesis applies a schedule to a cluster and to processes. A cluster that is not
// this run's own is spared.
type nemesis struct {
	t       *testing.T
	cluster *cluster
	workers *workers
	begun   time.Time
}

// run returns when all faults are over.
func (n *nemesis) run(ctx context.Context, s Schedule) {
	var all sync.WaitGroup
	for _, f := range s {
		all.Go(func() {
			if !sleep(ctx, f.At) {
				return
			}
			if err := n.begin(f); err != nil {
				n.t.Errorf("%v: %v", f, err)
			}
			sleep(ctx, f.For)
			if err := n.end(f); err != nil {
				n.t.Errorf("the end of %v: %v", f, err)
			}
			n.t.Logf("%6.1fs over: %v", time.Since(n.begun).Seconds(), f)
		})
	}
	all.Wait()
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

func (n *nemesis) begin(f Fault) error {
	if f.Kind != KillProcess && f.Kind != StopProcess && n.cluster == nil {
		return nil
	}
	var tr Trouble
	switch f.Kind {
	case KillNode:
		n.cluster.nodes[f.Node].Crash()
	case StopNode:
		return n.cluster.nodes[f.Node].Signal(syscall.SIGSTOP)
	case Clock:
		n.cluster.setClock(n.t, f.Node, f.By)
	case Isolate, OneWay, Clients:
		tr = Trouble{Cut: !f.Hold, Hold: f.Hold}
	case Slow:
		tr.Delay = f.By
	case Lossy:
		tr.Loss = f.Share
	case KillProcess:
		return n.workers.replace(f.Process)
	case StopProcess:
		return n.workers.signal(f.Process, syscall.SIGSTOP)
	}
	if tr != (Trouble{}) {
		n.cluster.trouble(f, tr)
	}
	return nil
}

func (n *nemesis) end(f Fault) error {
	if f.Kind != KillProcess && f.Kind != StopProcess && n.cluster == nil {
		return nil
	}
	switch f.Kind {
	case KillNode:
		return n.cluster.nodes[f.Node].Restart()
	case StopNode:
		return n.cluster.nodes[f.Node].Signal(syscall.SIGCONT)
	case Clock:
		n.cluster.setClock(n.t, f.Node, 0)
	case Isolate, OneWay, Clients, Slow, Lossy:
		n.cluster.trouble(f, Trouble{})
	case KillProcess:
	case StopProcess:
		return n.workers.signal(f.Process, syscall.SIGCONT)
	}
	return nil
}
