//go:build objects

package source

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"

	"bowstring/fetch/object"
	"bowstring/internal/objecttest"
)

// What is listed by several requests at once is what one list has, of servers that are not ours.
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
			const n = 12_000
			var want []string
			var put errgroup.Group
			put.SetLimit(32)
			for i := range n {
				key := fmt.Sprintf("data/%02d é/img-%06d.jpg", i/1000, i)
				want = append(want, key)
				put.Go(func() error {
					_, _, err := b.Put(t.Context(), key, []byte("x"), object.Condition{})
					return err
				})
			}
			if err := put.Wait(); err != nil {
				t.Fatal(err)
			}
			counted := &countedLists{Bucket: b}
			list, _, _, err := listRanges(t.Context(), counted, "data/")
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
			if counted.n.Load() < 2 && strings.HasPrefix(real.URL, "s3:") {
				t.Error("one range was listed")
			}
		})
	}
}

// countedLists counts lists that are begun.
type countedLists struct {
	object.Bucket

	n atomic.Int64
}

// List implements object.Bucket.
func (c *countedLists) List(ctx context.Context, opts object.ListOptions) iter.Seq2[object.Info, error] {
	c.n.Add(1)
	return c.Bucket.List(ctx, opts)
}
