package extent

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"bowstring/fetch/object"
	"bowstring/schema"
)

// buckets are the opened buckets by URL. They stay open until the store is closed: their
// number is that of the buckets that snapshots name.
type buckets struct {
	dial  func(ctx context.Context, url string) (object.Bucket, error)
	opens flights[string, object.Bucket]

	mu    sync.RWMutex
	known map[string]object.Bucket
}

func (b *buckets) init(s *Store, dial func(ctx context.Context, url string) (object.Bucket, error)) {
	b.dial, b.known, b.opens.s = dial, map[string]object.Bucket{}, s
}

// open returns the bucket of a URL. An error is not kept: the next read tries again.
func (b *buckets) open(ctx context.Context, url string) (object.Bucket, error) {
	b.mu.RLock()
	bucket := b.known[url]
	b.mu.RUnlock()
	if bucket != nil {
		return bucket, nil
	}
	bucket, err := b.opens.do(ctx, url, func(ctx context.Context) (object.Bucket, error) {
		b.mu.RLock()
		bucket := b.known[url] // by a flight that has just ended
		b.mu.RUnlock()
		if bucket != nil {
			return bucket, nil
		}
		if b.dial == nil {
			return nil, fmt.Errorf("%w: this store was opened without a way to read buckets", schema.ErrInvalid)
		}
		bucket, err := b.dial(ctx, url)
		if err != nil {
			return nil, err
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.known[url] = bucket
		return bucket, nil
	})
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", url, err)
	}
	return bucket, nil
}

// close closes all buckets. No read runs any more.
func (b *buckets) close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var errs []error
	for _, bucket := range b.known {
		errs = append(errs, bucket.Close())
	}
	clear(b.known)
	return errors.Join(errs...)
}
