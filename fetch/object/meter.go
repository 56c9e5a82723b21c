package object

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"bowstring/schema"
)

// Kind is the kind of a request, as clouds price requests.
type Kind uint8

// Kinds of requests.
const (
	KindGet Kind = iota
	KindHead
	KindList
	KindPut
	KindDelete

	kinds = iota
)

// String names the kind.
func (k Kind) String() string {
	return [...]string{"get", "head", "list", "put", "delete"}[k]
}

// Kinds are all kinds of requests.
func Kinds() []Kind { return []Kind{KindGet, KindHead, KindList, KindPut, KindDelete} }

// Counts are the requests that were made, and their bytes and failures.
type Counts struct {
	Gets    int64 `json:"gets"`
	Heads   int64 `json:"heads"`
	Lists   int64 `json:"lists"` // pages: each is a request
	Puts    int64 `json:"puts"`
	Deletes int64 `json:"deletes"`
	// BytesIn counts bytes of objects that were read, BytesOut those of objects that were
	// written. Headers and lists are in neither.
	BytesIn  int64 `json:"bytes_in"`
	BytesOut int64 `json:"bytes_out"`
	// Errors counts requests that failed, Throttled those among them that the bucket
	// refused for being too many. An object that does not exist, a condition that does
	// not hold and a call that the caller ended are no failures.
	Errors    int64 `json:"errors"`
	Throttled int64 `json:"throttled"`
}

// Number is how many requests of a kind there were.
func (c *Counts) Number(k Kind) int64 {
	return [...]int64{c.Gets, c.Heads, c.Lists, c.Puts, c.Deletes}[k]
}

// Requests is the number of requests of all kinds.
func (c *Counts) Requests() int64 { return c.Gets + c.Heads + c.Lists + c.Puts + c.Deletes }

// Add adds other counts.
func (c *Counts) Add(o Counts) {
	c.Gets += o.Gets
	c.Heads += o.Heads
	c.Lists += o.Lists
	c.Puts += o.Puts
	c.Deletes += o.Deletes
	c.BytesIn += o.BytesIn
	c.BytesOut += o.BytesOut
	c.Errors += o.Errors
	c.Throttled += o.Throttled
}

// FirstBytes is a histogram of the time that requests waited for the first byte of their
// answer. Bucket i counts times above 2^((FirstBytesLeast+i-1)/4) seconds, up to
// 2^((FirstBytesLeast+i)/4). These are the buckets of a Prometheus native histogram of
// schema 2, so the metric is exported without conversion. The first bucket also counts
// all shorter times, the last one all longer times.
type FirstBytes struct {
	Counts [FirstBytesLength]uint64
	Count  uint64
	Sum    time.Duration
}

// The buckets of FirstBytes.
const (
	// FirstBytesSchema is the schema of native histograms that has these buckets.
	FirstBytesSchema = 2
	// FirstBytesLeast is the index that bucket 0 has in that schema: up to 2^-14 s, 61
	// µs.
	FirstBytesLeast = -14 << FirstBytesSchema
	// FirstBytesLength is the number of buckets: up to 2^6 s, and one for longer times.
	FirstBytesLength = 20<<FirstBytesSchema + 2
)

// Quantile is the upper bound of the bucket with the quantile q (0 to 1); 0 if there are
// no requests. Buckets grow by a factor of 1.19, which is the relative error.
func (f *FirstBytes) Quantile(q float64) time.Duration {
	rank := uint64(q * float64(f.Count))
	for i, n := range f.Counts {
		if n > rank {
			return firstBytesBounds[min(i, len(firstBytesBounds)-1)]
		}
		rank -= n
	}
	return 0
}

// firstBytesBounds are the upper bounds of all buckets except the last one.
var firstBytesBounds = func() (bounds [FirstBytesLength - 1]time.Duration) {
	quarters := [4]float64{1, 1.189207115002721, 1.4142135623730951, 1.681792830507429} // 2^(i/4)
	for i := range bounds {
		at := i + FirstBytesLeast
		octave := at >> FirstBytesSchema
		whole := float64(time.Second)
		for range octave {
			whole *= 2
		}
		for range -octave {
			whole /= 2
		}
		bounds[i] = time.Duration(whole * quarters[at&3])
	}
	return bounds
}()

// MaxTenants is how many tenants of a bucket a Meter counts separately, since tenants
// come from requests. All others are counted together as [OtherTenants].
const MaxTenants = 64

// OtherTenants is the name under which all tenants beyond MaxTenants are counted.
const OtherTenants = "other"

// Meter counts the requests to buckets, by bucket and tenant. A request costs a few
// atomic additions and no allocation. It is safe for concurrent use.
type Meter struct {
	tenant func(context.Context) string

	mu      sync.Mutex
	buckets map[string]*counted // by URL; guarded by mu
}

// counted are the counts of one bucket.
type counted struct {
	mu      sync.Mutex                         // held to add a tenant
	tenants atomic.Pointer[map[string]*counts] // copied to add a tenant, so that readers take no lock
	first   firstBytes
}

// counts are those of one tenant.
type counts struct {
	requests          [kinds]atomic.Int64
	in, out           atomic.Int64
	errors, throttled atomic.Int64
}

// firstBytes is FirstBytes while it is being counted.
type firstBytes struct {
	counts [FirstBytesLength]atomic.Uint64
	sum    atomic.Int64
}

// NewMeter returns a Meter. tenant names the account that a request is charged to; if it
// is nil, all requests are those of the tenant "".
func NewMeter(tenant func(context.Context) string) *Meter {
	if tenant == nil {
		tenant = func(context.Context) string { return "" }
	}
	return &Meter{tenant: tenant, buckets: map[string]*counted{}}
}

// Metered returns the bucket with its requests counted by m. Buckets with the same URL are one.
func Metered(b Bucket, m *Meter) Bucket {
	url := b.URL()
	m.mu.Lock()
	c := m.buckets[url]
	if c == nil {
		c = &counted{}
		c.tenants.Store(&map[string]*counts{})
		m.buckets[url] = c
	}
	m.mu.Unlock()
	if f, ok := b.(firstByter); ok {
		f.onFirstByte(c.first.add)
	}
	return &metered{Bucket: b, meter: m, counted: c}
}

// firstByter is a Bucket that reports how long its requests wait for the first byte of
// their answers.
type firstByter interface {
	// onFirstByte sets the function that receives these times. It is called before the
	// first request.
	onFirstByte(took func(time.Duration))
}

// add counts one time, in the first bucket whose bound is not below it.
func (f *firstBytes) add(took time.Duration) {
	i, _ := slices.BinarySearch(firstBytesBounds[:], took)
	f.counts[i].Add(1)
	f.sum.Add(int64(took))
}

// read copies the histogram. Requests may end meanwhile, so Sum may include a time that
// Counts does not.
func (f *firstBytes) read() (r FirstBytes) {
	for i := range f.counts {
		r.Counts[i] = f.counts[i].Load()
		r.Count += r.Counts[i]
	}
	r.Sum = time.Duration(f.sum.Load())
	return r
}

// of returns the counts of a tenant, or those of OtherTenants if there are too many
// tenants.
func (c *counted) of(tenant string) *counts {
	if n := (*c.tenants.Load())[tenant]; n != nil {
		return n
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	have := *c.tenants.Load()
	if len(have) >= MaxTenants {
		tenant = OtherTenants
	}
	if n := have[tenant]; n != nil {
		return n
	}
	more := maps.Clone(have)
	more[tenant] = &counts{}
	c.tenants.Store(&more)
	return more[tenant]
}

// MeteredCounts are the counts of one bucket and tenant.
type MeteredCounts struct {
	Bucket string // its URL
	Tenant string
	Counts
}

// Counts returns all counts, in ascending order of bucket and tenant.
func (m *Meter) Counts() []MeteredCounts {
	var list []MeteredCounts
	m.mu.Lock()
	defer m.mu.Unlock()
	for url, c := range m.buckets {
		for tenant, n := range *c.tenants.Load() {
			list = append(list, MeteredCounts{url, tenant, n.read()})
		}
	}
	slices.SortFunc(list, func(a, b MeteredCounts) int {
		return cmp.Or(cmp.Compare(a.Bucket, b.Bucket), cmp.Compare(a.Tenant, b.Tenant))
	})
	return list
}

// FirstBytes returns the histogram of each bucket, by its URL.
func (m *Meter) FirstBytes() map[string]FirstBytes {
	m.mu.Lock()
	defer m.mu.Unlock()
	by := make(map[string]FirstBytes, len(m.buckets))
	for url, c := range m.buckets {
		by[url] = c.first.read()
	}
	return by
}

func (n *counts) read() Counts {
	r := &n.requests
	return Counts{
		Gets: r[KindGet].Load(), Heads: r[KindHead].Load(), Lists: r[KindList].Load(), Puts: r[KindPut].Load(),
		Deletes: r[KindDelete].Load(), BytesIn: n.in.Load(), BytesOut: n.out.Load(), Errors: n.errors.Load(),
		Throttled: n.throttled.Load(),
	}
}

// ended counts the failure of a request. A request that ends with its context is not the
// bucket's failure.
func (n *counts) ended(ctx context.Context, err error) {
	if err == nil || errors.Is(err, schema.ErrNotFound) || ctx.Err() != nil {
		return
	}
	n.errors.Add(1)
	if _, ok := errors.AsType[*ThrottledError](err); ok {
		n.throttled.Add(1)
	}
}

// metered is a Bucket whose requests are counted. Counting surrounds the bucket itself
// and not the wait for a turn, so only requests that were sent are counted.
type metered struct {
	Bucket
	meter   *Meter
	counted *counted
}

// begin counts a request before it is sent.
func (b *metered) begin(ctx context.Context, k Kind) *counts {
	n := b.counted.of(b.meter.tenant(ctx))
	n.requests[k].Add(1)
	return n
}

// Range implements Bucket.
func (b *metered) Range(ctx context.Context, key string, v schema.ObjectVersion, offset int64, buf []byte) error {
	n := b.begin(ctx, KindGet)
	err := b.Bucket.Range(ctx, key, v, offset, buf)
	if err == nil {
		n.in.Add(int64(len(buf)))
	}
	n.ended(ctx, err)
	return err
}

// Get implements Bucket.
func (b *metered) Get(ctx context.Context, key string, v schema.ObjectVersion, limit int64) ([]byte, Info, error) {
	n := b.begin(ctx, KindGet)
	data, info, err := b.Bucket.Get(ctx, key, v, limit)
	n.in.Add(int64(len(data)))
	n.ended(ctx, err)
	return data, info, err
}

// Stat implements Bucket.
func (b *metered) Stat(ctx context.Context, key string) (Info, error) {
	n := b.begin(ctx, KindHead)
	info, err := b.Bucket.Stat(ctx, key)
	n.ended(ctx, err)
	return info, err
}

// List implements Bucket. Each page is counted when it is requested, since a list costs
// one request a page.
func (b *metered) List(ctx context.Context, opts ListOptions) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		n, outer := b.counted.of(b.meter.tenant(ctx)), opts.Page
		opts.Page = func(ctx context.Context) error {
			if outer != nil {
				if err := outer(ctx); err != nil {
					return err
				}
			}
			n.requests[KindList].Add(1)
			return nil
		}
		for info, err := range b.Bucket.List(ctx, opts) {
			n.ended(ctx, err)
			if !yield(info, err) {
				return
			}
		}
	}
}

// Put implements Bucket. A condition that does not hold is an answer, not a failure.
func (b *metered) Put(ctx context.Context, key string, body []byte, c Condition) (Info, Outcome, error) {
	n := b.begin(ctx, KindPut)
	n.out.Add(int64(len(body)))
	info, outcome, err := b.Bucket.Put(ctx, key, body, c)
	if outcome != Moved {
		n.ended(ctx, err)
	}
	return info, outcome, err
}

// Delete implements Bucket.
func (b *metered) Delete(ctx context.Context, key string) error {
	n := b.begin(ctx, KindDelete)
	err := b.Bucket.Delete(ctx, key)
	n.ended(ctx, err)
	return err
}
