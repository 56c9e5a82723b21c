package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"bowstring/fetch/peers"
	"bowstring/flight/peer"
	"bowstring/schema"
)

// plainConn is the transport of a node that listens without TLS.
type plainConn struct{ net.Conn }

// WriteBuffers implements peer.Transport.
func (p plainConn) WriteBuffers(list net.Buffers, _, _ time.Time) error {
	_, err := list.WriteTo(p.Conn)
	return err
}

// Interrupt implements peer.Transport.
func (p plainConn) Interrupt() { _ = p.Close() }

// serveHostile is a node that answers what it is asked for with whatever answer returns, or ends the call with
// its error. It returns its address, and how often it was asked.
func serveHostile(t *testing.T, hello peer.Hello,
	answer func(asks []peer.Ask) ([][]byte, error)) (address string, heard *atomic.Int64) {
	t.Helper()
	heard = &atomic.Int64{}
	serve := func(conn *peer.Conn) error {
		method, err := conn.Receive(peer.MaxMethod)
		if err != nil {
			return err
		}
		host := peer.Host{Cluster: hello.Cluster, Node: hello.Node}
		if _, _, err := host.Meet(conn.Way(string(method))); err != nil {
			return err
		}
		for {
			m, err := conn.Receive(peer.MaxAsking)
			if err != nil {
				return err
			}
			if m[0] == peer.KindProgress {
				continue
			}
			heard.Add(1)
			var asks []peer.Ask
			if err := peer.ParseAsks(m, func(a peer.Ask) error {
				asks = append(asks, a)
				return nil
			}); err != nil {
				return err
			}
			messages, err := answer(asks)
			if err != nil {
				return errors.Join(err, conn.End(codes.Unknown, err.Error()))
			}
			for _, m := range messages {
				if err := conn.Send(m); err != nil {
					return err
				}
			}
		}
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			serving.Go(func() {
				defer stop()
				defer conn.Close()
				if _, err := io.ReadFull(conn, make([]byte, len(peer.Preface))); err == nil {
					_ = serve(peer.Accept(plainConn{conn}, nil)) // it ends as it likes
				}
			})
		}
	})
	t.Cleanup(func() { cancel(); _ = lis.Close(); serving.Wait() })
	return lis.Addr().String(), heard
}

// answers is a message of answers that have those bytes.
func answers(asks []peer.Ask, is peer.Status, bytes func(peer.Ask) []byte) []byte {
	var head []peer.Answer
	var body []byte
	for _, a := range asks {
		b := bytes(a)
		head = append(head, peer.Answer{ID: a.ID, Status: is, Size: len(b)})
		body = append(body, b...)
	}
	return append(peer.AppendAnswers(nil, head), body...)
}

// Whatever a node that owns everything answers, the requester gets each sample, with its
// bytes, from the store.
func TestHostileOwner(t *testing.T) {
	const n = 200
	zeros := func(more int) func(peer.Ask) []byte {
		return func(a peer.Ask) []byte { return make([]byte, a.Ref.Size+int64(more)) }
	}
	forged := map[schema.Key][]byte{}
	for i := range n {
		forged[schema.RefOf(content(i)).Key] = forgedContent(i)
	}
	is := peer.Hello{Node: "hostile", Protocols: []int{peer.Protocol}}
	for name, what := range map[string]func(asks []peer.Ask) ([][]byte, error){
		"wrong bytes": func(asks []peer.Ask) ([][]byte, error) {
			return [][]byte{answers(asks, peer.Here, zeros(0))}, nil
		},
		"bytes with the right checksum": func(asks []peer.Ask) ([][]byte, error) {
			return [][]byte{answers(asks, peer.Here, func(a peer.Ask) []byte {
				if b := forged[a.Ref.Key]; b != nil && a.Ref.Check(b) == nil {
					return b
				}
				return zeros(0)(a)
			})}, nil
		},
		"a byte more": func(asks []peer.Ask) ([][]byte, error) {
			return [][]byte{answers(asks, peer.Here, zeros(1))}, nil
		},
		"a byte less": func(asks []peer.Ask) ([][]byte, error) {
			return [][]byte{answers(asks, peer.Here, zeros(-1))}, nil
		},
		"nothing at all": func([]peer.Ask) ([][]byte, error) { return nil, nil },
		"an end":         func([]peer.Ask) ([][]byte, error) { return nil, fmt.Errorf("no more") },
		"no message":     func([]peer.Ask) ([][]byte, error) { return [][]byte{{1, 2}}, nil },
		"more than came": func([]peer.Ask) ([][]byte, error) { return [][]byte{{255, 255, 0, 0}}, nil },
		"half of it": func(asks []peer.Ask) ([][]byte, error) {
			m := answers(asks, peer.Here, zeros(0))
			return [][]byte{m[:len(m)/2]}, nil
		},
		"a blob without a request": func(asks []peer.Ask) ([][]byte, error) {
			for i := range asks {
				asks[i].ID += 1 << 20
			}
			return [][]byte{answers(asks, peer.Here, zeros(0))}, nil
		},
		"it is lost, at length": func(asks []peer.Ask) ([][]byte, error) {
			return [][]byte{answers(asks, peer.Lost, func(peer.Ask) []byte {
				return []byte(strings.Repeat("lost ", 20_000))
			})}, nil
		},
		"another state": func(asks []peer.Ask) ([][]byte, error) {
			return [][]byte{answers(asks, 77, zeros(0))}, nil
		},
		"that it is there, a thousand times": func([]peer.Ask) ([][]byte, error) {
			list := make([][]byte, 1000)
			for i := range list {
				list[i] = answers(nil, peer.Here, nil)
			}
			return list, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			addr, heard := serveHostile(t, is, what)
			c := &nodes{t: t, addr: map[string]string{"hostile": addr}}
			o := clusterOptions{patience: 20 * time.Millisecond}
			wrong := name == "wrong bytes" || name == "bytes with the right checksum"
			if wrong {
				o.patience = 0 // what it says counts, however late it comes
			}
			a := c.start(newStore(t, n), "a", []string{"hostile"}, 0, o)
			c.list = []*node{a}
			if err := a.tier.SetNodes([]string{"hostile"}); err != nil {
				t.Fatal(err)
			}
			for end := time.Now().Add(time.Minute); !a.tier.Stats()[0].Up; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("there is no connection")
				}
			}
			asked := [2]int64{}
			for epoch := range asked {
				seen := make([]atomic.Int32, n)
				if err := a.epoch(t, 7, uint64(epoch), 0, 1, seen, nil); err != nil {
					t.Fatal(err)
				}
				for pos := range seen {
					if got := seen[pos].Load(); got != 1 {
						t.Fatalf("epoch %d: position %d was served %d times", epoch, pos, got)
					}
				}
				asked[epoch] = a.tier.Stats()[0].Asked
			}
			st := a.tier.Stats()[0]
			if st.Answered != 0 || asked[0] == 0 || heard.Load() == 0 {
				t.Errorf("%d blobs were asked for in %d messages, and %d are said to have come", asked[0], heard.Load(),
					st.Answered)
			}
			if wrong && (st.Wrong == 0 || asked[1]-asked[0] > n/2) {
				t.Errorf("a node that sends wrong bytes (%d) was asked for %d more", st.Wrong, asked[1]-asked[0])
			}
		})
	}
}

// A node at whose address another one is now, or one of another cluster, is asked for nothing.
func TestAnotherNodeIsThere(t *testing.T) {
	for _, there := range []peer.Hello{
		{Node: "x", Protocols: []int{peer.Protocol}},
		{Cluster: "other", Node: "b", Protocols: []int{peer.Protocol}},
	} {
		addr, _ := serveHostile(t, there, func([]peer.Ask) ([][]byte, error) { return nil, nil })
		for _, want := range []bool{false, true} {
			o := peer.Options{Cluster: "mine", Node: "a", Other: "b"}
			if want {
				o.Cluster, o.Other = there.Cluster, there.Node
			}
			link, err := peer.Dial(addr, o)
			if err != nil {
				t.Fatal(err)
			}
			for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end) &&
				!link.Up(); time.Sleep(time.Millisecond) {
			}
			for end := time.Now().Add(time.Minute); want && !link.Up() &&
				time.Now().Before(end); time.Sleep(time.Millisecond) {
			}
			if link.Up() != want {
				t.Errorf("%+v is taken for %s of %s: %v, want %v", there, o.Other, o.Cluster, link.Up(), want)
			}
			if !want {
				if _, err := link.Get(t.Context(), peers.Ask{}); err == nil {
					t.Error("it was asked")
				}
			}
			if err := link.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
