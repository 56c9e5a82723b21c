package lineage

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"bowstring/schema"
)

// A disk that takes long to bring a full file to itself holds no stream up.
func TestBatchesDoNotWaitForTheDisk(t *testing.T) {
	l := must(Open(Options{Dir: t.TempDir(), MaxBytes: leastBytes, PieceBytes: 1 << 10, Logger: quiet}))
	begun, end := make(chan struct{}, 1), make(chan struct{})
	l.sync = func(f *os.File) error {
		select {
		case begun <- struct{}{}:
		default:
		}
		<-end
		return f.Sync()
	}
	handed := make(chan int)
	go func() {
		n := 0
		defer func() { handed <- n }()
		r := l.Begin(headOf(schema.OrderFree, nil))
		for stopping := false; ; n++ {
			next := headOf(schema.OrderFree, nil).Ticket
			r.Batch(Batch{Rows: 1, Seqs: []int64{int64(n)*2 + 1}, Next: next})
			if stopping {
				return
			}
			select {
			case <-begun:
				stopping = true // the disk is busy, and one more batch is handed out
			default:
			}
		}
	}()
	select {
	case <-handed:
	case <-time.After(time.Minute):
		t.Error("a batch waits for the disk")
	}
	if since, size := l.Kept(); since.IsZero() || size <= leastBytes/files {
		t.Errorf("%d bytes since %v", size, since)
	}
	close(end)
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// A file that cannot be synced to disk is logged, and streams go on.
func TestDiskThatFails(t *testing.T) {
	var logged bytes.Buffer
	l := must(Open(Options{Dir: t.TempDir(), MaxBytes: leastBytes, Logger: slog.New(slog.NewTextHandler(&logged, nil))}))
	l.sync = func(*os.File) error { return errors.New("the disk is gone") }
	r := l.Begin(headOf(schema.OrderFree, nil))
	for n := range int64(20_000) {
		r.Batch(Batch{Rows: 1, Seqs: []int64{n*2 + 1}, Next: headOf(schema.OrderFree, nil).Ticket})
	}
	if err := l.Close(); err == nil || !strings.Contains(err.Error(), "the disk is gone") {
		t.Error(err)
	}
	if !strings.Contains(logged.String(), "the disk is gone") {
		t.Errorf("the log says %q", logged.String())
	}
}
