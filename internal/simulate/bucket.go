package simulate

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"bowstring/fetch/object"
	"bowstring/fetch/store"
	"bowstring/schema"
)

// farBucket is the bucket that all nodes share, with the datasets in objects. It answers
// a limited number of requests a second, by a token bucket, and rejects more.
type farBucket struct {
	spec    Bucket
	price   *object.Price
	latency atomic.Int64

	requests, bytes, refused atomic.Int64

	mu sync.Mutex
	// mu guards these.
	allows float64   // requests per second; 0: no limit
	tokens float64   // unused requests
	moved  time.Time // when tokens were last updated
}

// bucketBurst is how long unused requests can be used later.
const bucketBurst = 250 * time.Millisecond

func newFarBucket(spec Bucket, prices *object.Prices) *farBucket {
	b := &farBucket{spec: spec, allows: spec.RequestsPerS, moved: time.Now()}
	b.price, _ = prices.Find(spec.URL)
	b.latency.Store(int64(millis(spec.LatencyMS)))
	b.tokens = b.allows * bucketBurst.Seconds()
	return b
}

// take reports whether the bucket answers one more request now.
func (b *farBucket) take() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.allows <= 0 {
		return true
	}
	now := time.Now()
	b.tokens = min(b.tokens+b.allows*now.Sub(b.moved).Seconds(), max(b.allows*bucketBurst.Seconds(), 1))
	b.moved = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// slow changes the capacity and latency of the bucket; 1 is normal.
func (b *farBucket) slow(factor float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.allows /= factor
	b.latency.Store(int64(float64(b.latency.Load()) * factor))
}

// nearBucket is the bucket as one node sees it. It is only read.
type nearBucket struct {
	object.Bucket // nil: tiers call only the methods below

	*farBucket
	node *node
}

// URL implements object.Bucket.
func (b nearBucket) URL() string { return b.spec.URL }

// Close implements object.Bucket.
func (nearBucket) Close() error { return nil }

// Range implements object.Bucket. It takes the bucket's latency, the bandwidth of the way
// to the node, and the node's CPU time. Rejected requests take the latency too.
func (b nearBucket) Range(ctx context.Context, key string, _ schema.ObjectVersion, _ int64, buf []byte) error {
	b.requests.Add(1)
	answered := b.take()
	if err := sleepUntil(ctx, time.Now().Add(time.Duration(b.latency.Load()))); err != nil {
		return err
	}
	if !answered {
		b.refused.Add(1)
		return &object.ThrottledError{Bucket: b.spec.URL, Key: key, Status: 503}
	}
	w, size := b.node.world, int64(len(buf))
	err := w.network.send(ctx, w.bucketEnd(), int32(b.node.index), func() []int32 {
		return []int32{w.bucketOut(), w.storeIn(b.node.index), w.in(b.node.index)}
	}, size)
	if err != nil {
		return err
	}
	b.bytes.Add(size)
	clear(buf)
	return b.node.cores.do(ctx, time.Duration(b.spec.USPerRequest*1e3)+seconds(float64(size)/1e9*b.spec.SPerGB))
}

// cost is the cost of requests that brought bytes.
func (b *farBucket) cost(requests, bytes int64) object.Bill {
	return object.Cost(object.Counts{Gets: requests, BytesIn: bytes}, b.price, object.Transfer(b.spec.Transfer))
}

// objects are the objects of a dataset. They have its blobs one after another.
type objects struct {
	dataset string
	seed    uint64
	bytes   int64 // about, per object
	sets    []*objectSet
	count   int64
}

// objectSet is a generated object set.
type objectSet struct {
	prefix schema.ObjectPrefix
	list   []schema.Object
}

// next returns the place of a blob of n bytes: after the previous one, or in a new object
// if the last one is full.
func (o *objects) next(n int64) schema.ObjectAddress {
	var set *objectSet
	if len(o.sets) > 0 {
		set = o.sets[len(o.sets)-1]
	}
	full := set == nil || set.list[len(set.list)-1].Size+n > o.bytes
	if set == nil || full && len(set.list) == schema.MaxObjects {
		name := sha256.Sum256(fmt.Appendf(nil, "object set %d of %s %d", len(o.sets), o.dataset, o.seed))
		set = &objectSet{prefix: schema.ObjectPrefix(name[:])}
		o.sets = append(o.sets, set)
	}
	if full {
		set.list = append(set.list, schema.Object{Key: fmt.Sprintf("%s/%08d", o.dataset, o.count),
			Version: schema.ObjectVersion{ETag: "1"}})
		o.count++
	}
	last := &set.list[len(set.list)-1]
	a := schema.ObjectAddress{Prefix: set.prefix, Object: uint32(len(set.list) - 1), Offset: last.Size}
	last.Size += n
	return a
}

// chunks returns the number of parts of the objects, if one request reads at most that
// many bytes.
func (o *objects) chunks(most int64) (n int64) {
	for _, set := range o.sets {
		for i := range set.list {
			n += (set.list[i].Size + most - 1) / most
		}
	}
	return n
}

// Locate implements store.Store: it returns the places of blobs in objects.
func (s nearStore) Locate(_ context.Context, ref schema.BlobRef) (store.Location, bool, error) {
	at, ok := schema.ParseObjectAddress(ref.Key)
	set := s.sets[at.Prefix]
	if !ok || ref.Hashed() || set == nil || int(at.Object) >= len(set.list) {
		return store.Location{}, false, nil
	}
	return store.Location{Bucket: s.bucket, Object: set.list[at.Object], Offset: at.Offset, Length: ref.Size}, true, nil
}
