package protocol

import (
	"context"
	"testing"
	"time"

	"bowstring/fetch/store"
)

// TestPace: the pace admits the configured bytes and blobs a second, and no more, in the
// time of the process.
func TestPace(t *testing.T) {
	var idle coroutines
	defer idle.close()
	w := newWorld(1, &idle)
	p := &process{w: w, name: "p"}
	var took time.Duration
	p.Go(func() {
		pace := newPace(p, store.GCOptions{BytesPerSecond: 1000, BlobsPerSecond: 10})
		for range 100 {
			if err := pace.remove(context.Background(), 50); err != nil {
				t.Error(err)
			}
		}
		if err := pace.read(context.Background(), 5000); err != nil {
			t.Error(err)
		}
		took = w.now
	})
	w.run(time.Hour)
	// 100 blobs at 10 per second, 10 of them at once, then 5,000 bytes at 1,000 per
	// second, 1,000 of them at once.
	if took < 12*time.Second || took > 14*time.Second {
		t.Errorf("it took %v, want 13 s", took)
	}
}
