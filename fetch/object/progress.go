package object

import (
	"context"
	"io"
)

// progressKey is the key of WithProgress's function in a context.
type progressKey struct{}

// WithProgress returns a context with which a Range calls came while bytes arrive, with
// the number of bytes that are in the buffer from its beginning. Range calls it on its
// own goroutine, with growing numbers, and waits for it. Bytes that were reported do not
// change any more: they belong to the version that was requested. A bucket that gets all
// bytes at once does not call it.
//
// A context carries the function because most callers of Bucket.Range, and all wrappers
// of Bucket, have no use for it.
func WithProgress(ctx context.Context, came func(n int)) context.Context {
	return context.WithValue(ctx, progressKey{}, came)
}

// Progress is the function that [WithProgress] set; nil if there is none.
func Progress(ctx context.Context) func(n int) {
	came, _ := ctx.Value(progressKey{}).(func(int))
	return came
}

// readFull fills buf as io.ReadFull does, and reports progress if the context asks for
// it.
func readFull(ctx context.Context, r io.Reader, buf []byte) error {
	came := Progress(ctx)
	if came == nil {
		_, err := io.ReadFull(r, buf)
		return err
	}
	for n := 0; n < len(buf); {
		k, err := r.Read(buf[n:])
		n += k
		if n == len(buf) {
			return nil
		}
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		came(n)
	}
	return nil
}
