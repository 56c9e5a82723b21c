package cql

import (
	"bytes"
	"testing"
	"time"

	"bowstring/schema"
)

// TestUsual: how long statements for small blobs take says nothing of those for large ones.
func TestUsual(t *testing.T) {
	const ms = time.Millisecond
	h := &gathered{}
	small, large := &h.kinds[0], &h.kinds[1]
	h.took(small, 8*ms)
	h.took(large, 80*ms)
	h.took(small, 16*ms)
	if small.usual != 9*ms || large.usual != 80*ms {
		t.Errorf("small ones take %s and large ones %s, want 9ms and 80ms", small.usual, large.usual)
	}
	if h.least != 8*ms {
		t.Errorf("an answer takes %s at least, want 8ms", h.least)
	}
}

func TestLinger(t *testing.T) {
	for usual, want := range map[time.Duration]time.Duration{
		0: 0, 8 * time.Millisecond: time.Millisecond, 16 * time.Millisecond: lingerMost, time.Second: lingerMost,
	} {
		if got := lingerBy(usual); got != want {
			t.Errorf("a statement stays open for %s where one takes %s, want %s", got, usual, want)
		}
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
