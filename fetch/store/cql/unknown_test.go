//go:build cassandra

package cql

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
)

// cutter is a Dialer whose connections are cut, from the next transaction on
// that is sent until it is disarmed, instead of the answers being delivered.
type cutter struct {
	word  []byte       // in the transaction and in nothing else
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

func (c *cutConn) Write(p []byte) (int, error) {
	if c.cutter.armed.Load() > 0 && bytes.Contains(p, c.cutter.word) && c.cutter.armed.Add(-1) >= 0 {
		c.doomed.Store(true)
	}
	return c.Conn.Write(p)
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
	cut := &cutter{word: []byte("snapshot/")} // the row that a commit writes
	s := openWith(t, keyspace, Options{Logger: quiet, Dialer: cut})
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
			t.Errorf("read %s of %v, committed %s of %v", fmt.Sprint(read.Number), read.Created,
				fmt.Sprint(snap.Number), snap.Created)
		}
	}
	if cut.cuts.Load() < 3 {
		t.Errorf("%d answers were lost, want 3: the test tests nothing", cut.cuts.Load())
	}
}
