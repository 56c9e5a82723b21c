//go:build objects

package source

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"

	"bowstring/fetch/object"
	"bowstring/internal/objecttest"
)

// Parallel requests return the keys of a sequential list, on third-party servers.
func TestRealListRanges(t *testing.T) {
	for name, start := range map[string]func(testing.TB) objecttest.Real{"versitygw": objecttest.Versity,
		"fake-gcs-server": objecttest.FakeGCS} {
		t.Run(name, func(t *testing.T) {
			real := start(t)
			b, err := object.Open(t.Context(), real.URL, object.Options{Keys: &real.Keys})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = b.Close() }()
			const n = 1000
			var want []string
			var put errgroup.Group
			put.SetLimit(32)
			for i := range n {
				key := fmt.Sprintf("data/%02d é/img-%06d.jpg", i/100, i)
				want = append(want, key)
				put.Go(func() error {
					_, _, err := b.Put(t.Context(), key, []byte("x"), object.Condition{})
					return err
				})
			}
			if err := put.Wait(); err != nil {
				t.Fatal(err)
			}
			counted := &smallPages{Bucket: b}
			list, _, err := listRanges(t.Context(), counted, "data/")
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for o := range list.from("") {
				got = append(got, o.Key)
			}
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("%d keys, want %d", len(got), len(want))
			}
			if counted.begun.Load() < 2 {
				t.Error("one range was listed")
			}
		})
	}
}

// smallPages is a bucket that lists a few keys a page. Each page begins after the last key
// of the page before. It counts the lists that are begun.
type smallPages struct {
	object.Bucket

	begun atomic.Int64
}

// List implements object.Bucket.
func (c *smallPages) List(ctx context.Context, opts object.ListOptions) iter.Seq2[object.Info, error] {
	c.begun.Add(1)
	return func(yield func(object.Info, error) bool) {
		const size = 20
		for n := size; n == size; {
			if err := opts.Page(ctx); err != nil {
				yield(object.Info{}, err)
				return
			}
			n = 0
			for o, err := range c.Bucket.List(ctx, object.ListOptions{Prefix: opts.Prefix, After: opts.After}) {
				if !yield(o, err) || err != nil {
					return
				}
				opts.After = o.Key
				if n++; n == size {
					break
				}
			}
		}
	}
}
