package object

import (
	"context"
	"io"
)

type progressKey struct{}

// WithProgress returns a context with which a Range calls came as bytes come, with how many of them are there from the
// beginning on. It is called by the goroutine of the Range, which waits for it, with numbers that grow. The bytes that
// are there do not change any more: they are of the version that was asked for. A bucket that has all bytes at once
// does not call it.
func WithProgress(ctx context.Context, came func(n int)) context.Context {
	return context.WithValue(ctx, progressKey{}, came)
}

// Progress is what [WithProgress] has called; nil if nothing is.
func Progress(ctx context.Context) func(n int) {
	came, _ := ctx.Value(progressKey{}).(func(int))
	return came
}

// readFull fills buf, and says how far it is where the context asks for that.
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
