//go:build cassandra

package cql

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gocql/gocql"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"bowstring/fetch/store"
	"bowstring/fetch/store/cql/cassandratest"
	"bowstring/fetch/store/storetest"
	"bowstring/schema"
)

// TestCloseLeavesNothing: all goroutines of a store that was open end.
func TestCloseLeavesNothing(t *testing.T) {
	node, keyspace := cassandratest.Shared(t), newKeyspace(t)
	before := goleak.IgnoreCurrent()
	s, err := Open(t.Context(), node.URI(keyspace, ""), Options{Create: true, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := importInto(t.Context(), s, "d", 0, blobs("leak", 3, 100)); err != nil {
		t.Fatal(err)
	}
	s.Stats()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := findLeaks(before); err != nil {
		t.Error(err)
	}
}

var keyspaces atomic.Int64

// newKeyspace is the name of a keyspace that no other test uses, and that is
// dropped at the end of the test: a server of this size has room for few.
func newKeyspace(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("t%d_%d", os.Getpid(), keyspaces.Add(1))
	uri := cassandratest.Shared(t).URI(name, "")
	t.Cleanup(func() {
		session := newSession(t, uri)
		defer session.Close()
		if err := session.Query("DROP KEYSPACE IF EXISTS " + name).Exec(); err != nil {
			t.Error(err)
		}
	})
	return name
}

// newSession opens a session without a keyspace on the server that uri names.
func newSession(t testing.TB, uri string) *gocql.Session {
	t.Helper()
	config, err := ParseURI(uri)
	if err != nil {
		t.Fatal(err)
	}
	cl, err := config.cluster(Options{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	cl.NumConns, cl.Timeout = 1, time.Minute
	session, err := cl.CreateSession()
	if err != nil {
		t.Fatal(err)
	}
	return session
}

// openStore opens a store until the end of the test. Clocks do not differ here.
func openStore(t testing.TB, keyspace string) *Store {
	t.Helper()
	s, err := Open(t.Context(), cassandratest.Shared(t).URI(keyspace, "grace=0s&conns=2"), Options{Create: true, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// blobs are distinct by name.
func blobs(name string, count, size int) [][]byte {
	list := make([][]byte, count)
	for i := range list {
		list[i] = make([]byte, size)
		copy(list[i], fmt.Sprintf("%s/%d", name, i))
	}
	return list
}

// importInto commits the blobs as a snapshot, on top of parent.
func importInto(ctx context.Context, s store.Store, dataset string, parent int64, data [][]byte) (_ *schema.Snapshot, err error) {
	in, err := s.Begin(ctx, dataset)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	snap, err := storetest.Put(ctx, in, data, 8)
	if err != nil {
		return nil, err
	}
	snap.Parent = parent
	return in.Commit(ctx, snap)
}

func has(t *testing.T, s store.Store, data []byte) error {
	t.Helper()
	ref := schema.RefOf(data)
	b, err := s.Get(t.Context(), ref)
	if err != nil {
		return err
	}
	defer b.Release()
	return ref.Check(b.Bytes())
}

// TestTwoImporters has two processes' worth of stores append to one dataset,
// each on what it saw last, while a third collects.
func TestTwoImporters(t *testing.T) {
	keyspace := newKeyspace(t)
	stores := []*Store{openStore(t, keyspace), openStore(t, keyspace)}
	collector := openStore(t, keyspace)
	const each = 6
	var mu sync.Mutex
	committed := map[int64]string{}
	done := make(chan struct{})
	var collections errgroup.Group
	collections.Go(func() error {
		for {
			select {
			case <-done:
				return nil
			default:
			}
			if _, err := collector.GC(t.Context(), store.GCOptions{}, nil); err != nil {
				return err
			}
		}
	})
	var g errgroup.Group
	for w, s := range stores {
		g.Go(func() error {
			for n := 0; n < each; {
				name := fmt.Sprintf("%d-%d", w, n)
				var parent int64
				newest, err := s.Snapshot(t.Context(), "shared", 0)
				if err == nil {
					parent = newest.Number
				} else if !errors.Is(err, schema.ErrNotFound) {
					return err
				}
				// Half of the blobs are the other's too.
				snap, err := importInto(t.Context(), s, "shared", parent, append(blobs(name, 3, 500), blobs(fmt.Sprint(n), 3, 500)...))
				if errors.Is(err, schema.ErrConflict) {
					continue
				} else if err != nil {
					return err
				}
				mu.Lock()
				if other, ok := committed[snap.Number]; ok {
					err = fmt.Errorf("%s and %s both got number %d", other, name, snap.Number)
				}
				committed[snap.Number] = name
				mu.Unlock()
				if err != nil {
					return err
				}
				n++
			}
			return nil
		})
	}
	err := g.Wait()
	close(done)
	if err := errors.Join(err, collections.Wait()); err != nil {
		t.Fatal(err)
	}
	for number := int64(1); number <= 2*each; number++ {
		name, ok := committed[number]
		if !ok {
			t.Fatalf("nobody got number %d of %v", number, committed)
		}
		snap, err := collector.Snapshot(t.Context(), "shared", number)
		if err != nil {
			t.Fatal(err)
		}
		if snap.Rows() != 6 || snap.Parent != number-1 {
			t.Errorf("snapshot %d has %d rows and parent %d", number, snap.Rows(), snap.Parent)
		}
		for _, data := range append(blobs(name, 3, 500), blobs(name[2:], 3, 500)...) {
			if err := has(t, collector, data); err != nil {
				t.Errorf("snapshot %d, by %s: %v", number, name, err)
			}
		}
	}
}

// TestCollectionSparesOtherProcesses: what another process reads or puts stays.
func TestCollectionSparesOtherProcesses(t *testing.T) {
	keyspace := newKeyspace(t)
	mine, other := openStore(t, keyspace), openStore(t, keyspace)
	read, put, dead := blobs("read", 3, 300), blobs("put", 3, 300), blobs("dead", 3, 300)
	if _, err := importInto(t.Context(), mine, "read", 0, read); err != nil {
		t.Fatal(err)
	}
	if _, err := importInto(t.Context(), mine, "dead", 0, dead); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Snapshot(t.Context(), "read", 0); err != nil {
		t.Fatal(err)
	}
	in, err := other.Begin(t.Context(), "put")
	if err != nil {
		t.Fatal(err)
	}
	snap, err := storetest.Put(t.Context(), in, put, 8)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"read", "dead"} {
		if err := mine.Drop(t.Context(), name, 0); err != nil {
			t.Fatal(err)
		}
	}
	gc := func() {
		t.Helper()
		if _, err := mine.GC(t.Context(), store.GCOptions{}, nil); err != nil {
			t.Fatal(err)
		}
	}
	gc()
	for i := range 3 {
		if err := errors.Join(has(t, mine, read[i]), has(t, mine, put[i])); err != nil {
			t.Errorf("what another process holds was freed: %v", err)
		}
		if err := has(t, mine, dead[i]); !errors.Is(err, schema.ErrNotFound) {
			t.Errorf("what nobody holds is still there: %v", err)
		}
	}
	if _, err := in.Commit(t.Context(), snap); err != nil {
		t.Fatal(err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	gc()
	for i := range 3 {
		if err := has(t, mine, put[i]); err != nil {
			t.Errorf("what was committed was freed: %v", err)
		}
		if err := has(t, mine, read[i]); !errors.Is(err, schema.ErrNotFound) {
			t.Errorf("what a process held that has ended is still there: %v", err)
		}
	}
}

// TestUnfinishedPutIsCollected: parts without the row that completes them.
func TestUnfinishedPutIsCollected(t *testing.T) {
	keyspace := newKeyspace(t)
	s := openStore(t, keyspace)
	data := blobs("unfinished", 1, 3*PartBytes)[0]
	ref := schema.RefOf(data)
	at := s.clock.now()
	if err := errors.Join(s.touch(t.Context(), ref, at), s.putParts(t.Context(), ref, data, at)); err != nil {
		t.Fatal(err)
	}
	in, err := s.Begin(t.Context(), "d")
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := s.present(t.Context(), ref); !errors.Is(err, schema.ErrInvalid) {
		t.Errorf("a blob that is not complete counts as present: %v", err)
	}
	r, err := s.GC(t.Context(), store.GCOptions{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if (r != store.GCReport{}) {
		t.Errorf("what was not finished is counted: %+v", r)
	}
	if err := has(t, s, data); !errors.Is(err, schema.ErrNotFound) {
		t.Errorf("the parts are still there: %v", err)
	}
}

// cutter is a Dialer whose connections are cut, from the next transaction on
// that is sent until it is disarmed, instead of the answers being delivered.
type cutter struct {
	armed atomic.Int32 // answers to swallow
	cuts  atomic.Int32
}

func (c *cutter) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &cutConn{Conn: conn, cutter: c}, nil
}

type cutConn struct {
	net.Conn
	cutter *cutter
	doomed atomic.Bool
}

// commitWord is in the parameters of a commit and of nothing else: the record's
// magic number of zstd.
var commitWord = binary.LittleEndian.AppendUint32(nil, 0xFD2FB528)

func (c *cutConn) Write(p []byte) (int, error) {
	if c.cutter.armed.Load() > 0 && containsWord(p, commitWord) && c.cutter.armed.Add(-1) >= 0 {
		c.doomed.Store(true)
	}
	return c.Conn.Write(p)
}

func containsWord(p, word []byte) bool {
	for i := 0; i+len(word) <= len(p); i++ {
		if string(p[i:i+len(word)]) == string(word) {
			return true
		}
	}
	return false
}

func (c *cutConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err == nil && c.doomed.Load() {
		c.cutter.cuts.Add(1)
		return 0, errors.Join(io.ErrUnexpectedEOF, c.Close())
	}
	return n, err
}

// TestUnknownOutcome: the server makes the transaction and the answer is lost.
func TestUnknownOutcome(t *testing.T) {
	keyspace := newKeyspace(t)
	cut := &cutter{}
	s, err := Open(t.Context(), cassandratest.Shared(t).URI(keyspace, "grace=0s&conns=2"), Options{Create: true, Logger: quiet, Dialer: cut})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for number := range int64(3) {
		cut.armed.Store(1)
		snap, err := importInto(t.Context(), s, "d", number, blobs(fmt.Sprint(number), 2, 100))
		if err != nil {
			t.Fatal(err)
		}
		if snap.Number != number+1 {
			t.Fatalf("committed number %d, want %d: the transaction was made twice", snap.Number, number+1)
		}
		read, err := s.Snapshot(t.Context(), "d", 0)
		if err != nil {
			t.Fatal(err)
		}
		if read.Number != snap.Number || !read.Created.Equal(snap.Created) {
			t.Errorf("read %s of %v, committed %s of %v", snapshotName("d", read.Number), read.Created, snapshotName("d", snap.Number), snap.Created)
		}
	}
	if cut.cuts.Load() < 3 {
		t.Errorf("%d answers were lost, want 3: the test tests nothing", cut.cuts.Load())
	}
}

func TestForeignKeyspaceIsLeftAlone(t *testing.T) {
	keyspace := newKeyspace(t)
	uri := cassandratest.Shared(t).URI(keyspace, "")
	session := newSession(t, uri)
	defer session.Close()
	for _, stmt := range []string{
		"CREATE KEYSPACE " + keyspace + " WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
		"CREATE TABLE " + keyspace + ".blobs (id int PRIMARY KEY)",
	} {
		if err := session.Query(stmt).Exec(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Open(t.Context(), uri, Options{Create: true, Logger: quiet}); !errors.Is(err, schema.ErrInvalid) {
		t.Errorf("a keyspace with a table of that name: %v", err)
	}
	if _, err := Open(t.Context(), cassandratest.Shared(t).URI("absent", ""), Options{Logger: quiet}); !errors.Is(err, schema.ErrNotFound) {
		t.Errorf("an absent keyspace: %v", err)
	}
	var field *schema.FieldError
	if _, err := Open(t.Context(), uri+"?dc=mars", Options{Logger: quiet}); !errors.As(err, &field) || field.Field != "dc" {
		t.Errorf("an absent datacenter: %v", err)
	}
}
