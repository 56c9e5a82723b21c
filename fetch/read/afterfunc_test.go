package read

import (
	"context"
	"testing"
)

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
