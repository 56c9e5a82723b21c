package flight

import (
	"context"
	"runtime"
	"testing"
	"time"

	"bowstring/flight/upload"

	"google.golang.org/grpc/codes"
)

// TestUploadsTakeTurns: the CPU work of a large upload waits for the turns of others. A
// small upload does not wait.
func TestUploadsTakeTurns(t *testing.T) {
	f := serve(t, Options{})
	work := f.engine.Work()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	busy := max(1, runtime.GOMAXPROCS(0)/2)
	for range busy {
		begun := make(chan struct{})
		go func() {
			done <- work.Do(t.Context(), "somebody", func() error {
				close(begun)
				<-ctx.Done()
				return nil
			})
		}()
		<-begun
	}
	f.fill("small", 2) // would hang

	large := samples(0, upload.RowsAtOnce+1)
	defer large.Release()
	putting, give := context.WithCancel(t.Context())
	defer give()
	stream, writer := f.uploading(putting, f.client, path("large"))
	if err := writer.Write(large); err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	stop := time.AfterFunc(200*time.Millisecond, give) // time enough for an upload that does not wait
	defer stop.Stop()
	_, err := resultsOf(stream)
	wantCode(t, err, codes.Canceled, "")
	f.wantDatasets("small")

	cancel()
	for range busy {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	f.fill("large", upload.RowsAtOnce+1)
}
