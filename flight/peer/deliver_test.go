package peer

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net"
	"testing"

	"bowstring/schema"
)

// Each answer goes to the read that waits for it, however a message is split on its way
// and whatever is between the blobs.
func TestDeliver(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	l := &Link{waiting: map[uint32]*waiter{}}
	var head []Answer
	var content [][]byte
	waiters := map[int]*waiter{}
	for i := range 200 {
		b := make([]byte, []int{0, 1, rng.IntN(3000), rng.IntN(100_000)}[rng.IntN(4)])
		for j := range b {
			b[j] = byte(rng.Uint32())
		}
		l.next++
		a := Answer{ID: l.next, Status: Here, Size: len(b)}
		if rng.IntN(10) == 0 {
			a.Status = Failed
		}
		if rng.IntN(10) > 0 { // otherwise the reader has left
			waiters[i] = &waiter{int64(len(b)), make(chan answer, 1)}
			l.waiting[a.ID] = waiters[i]
		}
		head, content = append(head, a), append(content, b)
	}
	message := append(AppendAnswers(nil, head), bytes.Join(content, nil)...)
	message = append(message, "what a later version says"...)
	c := connTo(t, func(far net.Conn) {
		for b := framed(frameMessage, message); len(b) > 0; {
			n := min(len(b), 1+rng.IntN(300_000))
			if _, err := far.Write(b[:n]); err != nil {
				t.Error(err)
				return
			}
			b = b[n:]
		}
	})
	n, err := c.next(maxMessage)
	if err == nil {
		err = l.deliver(c, n)
	}
	if err != nil || len(l.waiting) > 0 {
		t.Fatalf("%v; %d wait", err, len(l.waiting))
	}
	for i, to := range waiters {
		switch is := <-to.answer; {
		case head[i].Status == Failed && !errors.Is(is.err, schema.ErrUnavailable):
			t.Errorf("answer %d: %v, want that it failed", i, is.err)
		case head[i].Status == Here && (is.err != nil || !bytes.Equal(is.blob.Bytes(), content[i])):
			t.Errorf("answer %d: %d bytes, %v; want the %d that were sent", i, len(is.blob.Bytes()), is.err, len(content[i]))
		default:
			is.blob.Release()
		}
	}
}

// A message that ends amid a blob fails, and hands out no blob that is not whole.
func TestDeliverCut(t *testing.T) {
	l := &Link{waiting: map[uint32]*waiter{}, next: 2}
	for id := uint32(1); id <= 2; id++ {
		l.waiting[id] = &waiter{1000, make(chan answer, 1)}
	}
	second := l.waiting[2]
	head := AppendAnswers(nil, []Answer{{1, Here, 1000}, {2, Here, 1000}})
	c := connTo(t, func(far net.Conn) {
		cut := framed(frameMessage, append(head, make([]byte, 2000)...))
		if _, err := far.Write(cut[:len(cut)-1]); err != nil {
			t.Error(err)
		}
	})
	n, err := c.next(maxMessage)
	if err == nil {
		err = l.deliver(c, n)
	}
	if err == nil || l.waiting[2] == nil || len(second.answer) > 0 {
		t.Errorf("%v; a blob without its last byte was handed out: %v", err, len(second.answer) > 0)
	}
}
