package spans_test

import (
	"context"
	"fmt"
	"testing"

	"bowstring/fetch/spans"
	"bowstring/internal/readtest"
	"bowstring/schema"
)

func TestConformance(t *testing.T) {
	readtest.Run(t, func(t testing.TB) readtest.Opener {
		return func() (readtest.Subject, error) {
			s := newLying()
			tier, err := spans.New(spans.Options{Store: s, Set: allIn})
			if err != nil {
				return readtest.Subject{}, err
			}
			puts := 0
			return readtest.Subject{
				Tier: tier,
				Put: func(_ context.Context, data []byte) (schema.BlobRef, error) {
					puts++
					if loc, ok, _ := s.Locate(t.Context(), schema.RefOf(data)); ok && loc.Length > 0 {
						return schema.RefOf(data), nil
					}
					return s.put(fmt.Sprint("object-", puts/16), 512, data), nil
				},
				Hang:  s.bucket.hang,
				Close: func() error { tier.Close(); return nil },
			}, nil
		}
	})
}
