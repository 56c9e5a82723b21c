package read

import (
	"context"
	"testing"
)

// Where there is always something due, what was taken makes room for what comes.
func TestDueDoesNotGrow(t *testing.T) {
	const waiting = 10
	var d due
	for i := range 100_000 {
		d.add(Attempt{read: &read{}, nth: i})
		if i < waiting {
			continue
		}
		if a := d.take(); a.nth != i-waiting {
			t.Fatalf("attempt %d is taken, want %d: the oldest is first", a.nth, i-waiting)
		}
	}
	if n := cap(d.list); n > 8*waiting {
		t.Errorf("there is room for %d attempts where %d wait", n, waiting)
	}
	for range waiting {
		d.take()
	}
	if a := d.take(); a.read != nil || len(d.list) != 0 {
		t.Errorf("%v is taken of an empty queue of %d", a, len(d.list))
	}
}

// A context made of a read's ends with it, and leaves nothing behind when it ends before.
func TestContextOfRead(t *testing.T) {
	var rd readContext
	early, cancel := context.WithCancel(&rd)
	cancel()
	<-early.Done()
	if len(rd.after) > 0 {
		t.Errorf("%d calls are left of a context that has ended", len(rd.after))
	}
	with, stop := context.WithCancel(&rd)
	defer stop()
	called := make(chan struct{})
	defer context.AfterFunc(&rd, func() { close(called) })()
	if with.Err() != nil {
		t.Fatal("it has ended before the read")
	}
	rd.end()
	<-with.Done()
	<-called
	after, stop := context.WithCancel(&rd)
	defer stop()
	<-after.Done()
}
