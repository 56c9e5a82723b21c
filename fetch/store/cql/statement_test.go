package cql

import (
	"bytes"
	"testing"
	"time"

	"bowstring/schema"
)

// TestUsual: how long statements for small blobs take says nothing of those for large ones, and what is cut at the same
// time counts once.
func TestUsual(t *testing.T) {
	const ms = time.Millisecond
	began := time.Now()
	at := func(d time.Duration) time.Time { return began.Add(d) }
	h := &gathered{}
	small, large := &h.kinds[0], &h.kinds[1]
	h.took(small, at(0), at(8*ms))
	h.took(large, at(0), at(80*ms))
	h.took(small, at(0), at(16*ms))
	if small.usual != 9*ms || large.usual != 80*ms {
		t.Errorf("small ones take %s and large ones %s, want 9ms and 80ms", small.usual, large.usual)
	}
	if h.least != 8*ms {
		t.Errorf("an answer takes %s at least, want 8ms", h.least)
	}
	for range 5 { // all were sent before the first of them was given up
		h.gaveUp(large, at(100*ms), at(740*ms))
	}
	if large.usual != 150*ms || small.usual != 9*ms {
		t.Errorf("after a cut large ones take %s and small ones %s, want 150ms and 9ms", large.usual, small.usual)
	}
	h.gaveUp(large, at(740*ms), at(1690*ms))
	if large.usual != 250*ms {
		t.Errorf("after a second cut large ones take %s, want 250ms", large.usual)
	}
	if h.least != 8*ms {
		t.Errorf("what was given up is taken for an answer of %s", h.least)
	}
}

func TestWaits(t *testing.T) {
	for _, c := range []struct{ usual, linger, patience time.Duration }{
		{0, 0, cutLeast},
		{8 * time.Millisecond, time.Millisecond, cutLeast},
		{16 * time.Millisecond, lingerMost, cutLeast},
		{time.Second, lingerMost, 8 * time.Second},
	} {
		if got := lingerBy(c.usual); got != c.linger {
			t.Errorf("a statement stays open for %s where one takes %s, want %s", got, c.usual, c.linger)
		}
		if got := patienceBy(c.usual); got != c.patience {
			t.Errorf("a statement has %s where one takes %s, want %s", got, c.usual, c.patience)
		}
	}
}

// TestStatementOverdue: a statement is given up after its time, if one was answered that was sent after it. Where all
// wait for the same thing, none is.
func TestStatementOverdue(t *testing.T) {
	const ms = time.Millisecond
	began := time.Now()
	at := func(d time.Duration) time.Time { return began.Add(d) }
	for name, c := range map[string]struct {
		usual, last, now time.Duration
		overdue          bool
		wait             time.Duration
	}{
		"just sent":                      {usual: 100 * ms, wait: 800 * ms},
		"nothing was answered yet":       {now: cutLeast - ms, wait: ms},
		"nothing is answered":            {now: time.Hour, wait: cutLeast},
		"in its time":                    {usual: 100 * ms, last: 600 * ms, now: 799 * ms, wait: ms},
		"what was before it, late":       {usual: 100 * ms, last: -ms, now: 800 * ms, wait: cutLeast},
		"what was sent with it, late":    {usual: 100 * ms, last: 0, now: 800 * ms, wait: cutLeast},
		"what was sent after it, late":   {usual: 100 * ms, last: ms, now: 800 * ms, overdue: true, wait: cutLeast},
		"the same, on a link grown slow": {usual: time.Second, last: ms, now: 800 * ms, wait: 7200 * ms},
	} {
		h := &gathered{last: at(c.last)}
		st := &statement{gathering: &gathering{patience: patienceBy}, host: h, kind: &h.kinds[1]}
		st.kind.usual = c.usual
		overdue, wait := st.overdue(began, at(c.now))
		if overdue != c.overdue || wait != c.wait {
			t.Errorf("%s: overdue %v, wait %s, want %v, %s", name, overdue, wait, c.overdue, c.wait)
		}
	}
	h := &gathered{}
	h.took(&h.kinds[0], at(5*ms), at(6*ms))
	h.took(&h.kinds[1], at(3*ms), at(7*ms))
	if h.last != at(5*ms) {
		t.Errorf("the last that was answered was sent at %s, want 5ms", h.last.Sub(began))
	}
	single := single{host: h, began: at(6 * ms)}
	h.reads = 1
	single.end(nil)
	if h.last != at(6*ms) {
		t.Errorf("after a single read the last was sent at %s, want 6ms", h.last.Sub(began))
	}
}

// TestRoutingKey: a partition key of several columns is hashed as each column's length, its bytes and a zero.
func TestRoutingKey(t *testing.T) {
	key := schema.RefOf([]byte("a blob")).Key
	want := append([]byte{0, byte(len(key))}, key[:]...)
	want = append(want, 0 /* key ends */, 0, 4, 0, 0, 0, 0 /* part 0 */, 0)
	if got := routingKey(&key); !bytes.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
}
