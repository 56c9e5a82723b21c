package bucket

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"bowstring/fetch/object"
	"bowstring/fetch/store"
	"bowstring/fetch/store/protocol"
	"bowstring/schema"
)

var _ store.Store = (*Store)(nil)

// Options tunes a Store. The zero value is good for any use.
type Options struct {
	// Logger gets what an operator should know. Default: slog.Default().
	Logger *slog.Logger
	// Bucket says how the bucket is reached.
	Bucket object.Options
	// SegmentBytes is the size at which a segment is followed by another, 64 MiB if 0, at most 256 MiB.
	SegmentBytes int64
	// Uploads is how many segments are written at once, 4 if 0. That number is in memory,
	// and one more for each open ingest.
	Uploads int
	// Renew is how often the process says that it is at work, 30 s if 0. Collections wait about that long for it.
	Renew time.Duration
	// Lapse is after how long others take it for dead that it has not said so, 8 times Renew if 0.
	Lapse time.Duration
	// Clock is what the time is taken to be. Default: time.Now.
	Clock func() time.Time
}

const (
	defaultSegment = 64 << 20
	maxSegment     = 256 << 20
	defaultUploads = 4
	defaultRenew   = 30 * time.Second
	lapseRenewals  = 8
	// inlineRecord is the size up to which a snapshot's record is stored in the catalog:
	// reading it there saves a round trip.
	inlineRecord = 8 << 10
)

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.SegmentBytes <= 0 {
		o.SegmentBytes = defaultSegment
	}
	o.SegmentBytes = min(o.SegmentBytes, maxSegment)
	if o.Uploads <= 0 {
		o.Uploads = defaultUploads
	}
	if o.Renew <= 0 {
		o.Renew = defaultRenew
	}
	if o.Lapse <= 0 {
		o.Lapse = lapseRenewals * o.Renew
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	return o
}

// Store is a store.Store in a bucket. It is safe for concurrent use, by several processes too.
type Store struct {
	*protocol.Store // the catalog, ingests and collections, over database

	bucket  object.Bucket
	prefix  string // of all keys: empty, or with a slash at its end
	id      string // of the store
	options Options
	log     *slog.Logger

	partitions seenPartitions
	members    memberVersions
	leases     leases
	packs      sync.Map // schema.ObjectPrefix to *pack: those of open ingests
	uploads    places
	repairs    repairs
	census     census

	// life is read-locked by each call and locked by Close.
	life   sync.RWMutex
	closed bool
	ending context.Context //nolint:containedctx // done when Close begins, to stop what takes long
	end    context.CancelFunc

	reads, readBytes atomic.Int64
}

// IsURL reports whether an address is one of a store in a bucket: s3://, gs://, az:// or file://.
func IsURL(addr string) bool {
	scheme, _, _ := strings.Cut(addr, "://")
	switch scheme {
	case "s3", "gs", "az", "file":
		return object.IsURL(addr)
	}
	return false
}

// Open opens the store under a URL: s3://BUCKET/PREFIX, gs://, az://, file://. One that is not there is a
// schema.ErrNotFound: [Init] makes it.
func Open(ctx context.Context, url string, opts Options) (*Store, error) {
	s, err := reach(ctx, url, opts)
	switch {
	case errors.Is(err, schema.ErrNotFound): // a directory that is yet to be made
		return nil, fmt.Errorf("open store: %w; bowstring store init makes the store", err)
	case err != nil:
		return nil, fmt.Errorf("open store: %w", err)
	}
	if err := s.begin(ctx); err != nil {
		s.end()
		return nil, errors.Join(fmt.Errorf("open store %s: %w", s, err), s.bucket.Close())
	}
	return s, nil
}

// reach makes a store without a request.
func reach(ctx context.Context, url string, opts Options) (*Store, error) {
	if !IsURL(url) {
		return nil, fmt.Errorf("%w: a store in a bucket has an address such as s3://BUCKET/PREFIX", schema.ErrInvalid)
	}
	place, prefix, err := object.SplitURL(url)
	if err != nil {
		return nil, err
	}
	bucket, err := object.Open(ctx, place, opts.Bucket)
	if err != nil {
		return nil, err
	}
	return over(bucket, prefix, opts), nil
}

// over is a store in a bucket, under a prefix.
func over(bucket object.Bucket, prefix string, opts Options) *Store {
	opts = opts.withDefaults()
	if prefix = strings.Trim(prefix, "/"); prefix != "" {
		prefix += "/"
	}
	s := &Store{bucket: bucket, prefix: prefix, options: opts, log: opts.Logger, uploads: make(places, opts.Uploads)}
	s.members.own, s.members.read = map[string]schema.ObjectVersion{}, map[string]readMember{}
	s.leases.read = map[string]readLease{}
	s.ending, s.end = context.WithCancel(context.Background())
	return s
}

// begin looks for the store, and readies it for use.
func (s *Store) begin(ctx context.Context) error {
	f, err := s.format(ctx)
	if err != nil {
		return err
	}
	s.id = f.ID
	s.Store = s.protocol()
	if err := s.recount(ctx); err != nil {
		return errors.Join(err, s.Store.Close())
	}
	return nil
}

// protocol is the protocol over the bucket.
func (s *Store) protocol() *protocol.Store {
	return protocol.New(database{s}, protocol.SystemAt(s.options.Clock), protocol.Options{
		Holder: holder(), Where: s.String(), Log: s.log, RenewEvery: s.options.Renew, InlineRecord: inlineRecord,
		Stored: s.census.add, Finish: s.finish,
	})
}

// formatFile is the content of FORMAT.
type formatFile struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	ID      string `json:"id"`
}

const (
	keyFormat     = "FORMAT"
	formatName    = "bowstring-bucket"
	formatVersion = 1
)

// format reads what FORMAT says.
func (s *Store) format(ctx context.Context) (f formatFile, err error) {
	var data []byte
	err = s.again(ctx, func(ctx context.Context) (err error) {
		data, _, err = s.bucket.Get(ctx, s.key(keyFormat), schema.ObjectVersion{}, 1<<20)
		return err
	})
	switch {
	case errors.Is(err, schema.ErrNotFound):
		return f, fmt.Errorf("%w: there is no store in %s: bowstring store init --store %s makes one", schema.ErrNotFound, s, s)
	case err != nil:
		return f, err
	}
	switch err := json.Unmarshal(data, &f); {
	case err != nil || f.Format != formatName:
		return f, fmt.Errorf("%w: %s of %s is not that of a store in a bucket", schema.ErrInvalid, keyFormat, s)
	case f.Version != formatVersion:
		return f, fmt.Errorf("%w: the store in %s has format %d, and this program reads %d", schema.ErrInvalid, s, f.Version,
			formatVersion)
	}
	return f, nil
}

// String is the store's URL, without secrets.
func (s *Store) String() string {
	url, settings, has := strings.Cut(s.bucket.URL(), "?")
	if s.prefix != "" {
		url += "/" + strings.TrimSuffix(s.prefix, "/")
	}
	if has {
		url += "?" + settings
	}
	return url
}

// Where says for errors where the store is.
func (s *Store) Where() string { return "the store in " + s.String() }

// Bucket returns the bucket of the store's objects.
func (s *Store) Bucket() object.Bucket { return s.bucket }

func (s *Store) key(name string) string { return s.prefix + name }

func (s *Store) segmentKey(prefix schema.ObjectPrefix, number uint32) string {
	return s.key(dirSegments + segmentName(prefix, number))
}

func (s *Store) now() time.Time { return s.options.Clock() }

const (
	// tries is how often a request is made that may be repeated.
	tries = 5
	// firstPause is before the second try, twice as long before each that follows.
	firstPause = 100 * time.Millisecond
	// answerWithin is how long an answer to a small request is waited for.
	answerWithin = 30 * time.Second
)

// again calls f, which may be repeated without harm, until it has an answer.
func (s *Store) again(ctx context.Context, f func(ctx context.Context) error) error {
	for try := 0; ; try++ {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		within, cancel := context.WithTimeoutCause(ctx, answerWithin, errLate)
		err := f(within)
		if err != nil && errors.Is(context.Cause(within), errLate) {
			err = errLate
		}
		cancel()
		if err == nil || !errors.Is(err, schema.ErrUnavailable) || try == tries-1 {
			return err
		}
		if err := pauseAfter(ctx, err, try); err != nil {
			return err
		}
	}
}

var errLate = fmt.Errorf("%w: no answer within %s", schema.ErrUnavailable, answerWithin)

// pauseAfter waits before the n-th repetition of what has failed, counted from 0, as long as the server asks for.
func pauseAfter(ctx context.Context, err error, n int) error {
	var throttled *object.ThrottledError
	if errors.As(err, &throttled) && throttled.After > 0 {
		return wait(ctx, min(throttled.After, answerWithin))
	}
	return pause(ctx, n)
}

// pause waits before the n-th repetition, counted from 0.
func pause(ctx context.Context, n int) error {
	d := firstPause << min(n, 6)
	return wait(ctx, d/2+time.Duration(rand.Int64N(int64(d))))
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// enter begins a call; the caller ends it with s.life.RUnlock.
func (s *Store) enter(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s.life.RLock()
	if s.closed {
		s.life.RUnlock()
		return fmt.Errorf("%w: the store %s is closed", schema.ErrUnavailable, s)
	}
	return nil
}

// Close implements store.Store. A collection under way is stopped, and so is what ingests write.
func (s *Store) Close() error {
	s.end()
	err := s.Store.Close()
	s.life.Lock()
	defer s.life.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.packs.Range(func(_, p any) bool {
		p.(*pack).Close() //nolint:forcetypeassert // nothing else is in it
		return true
	})
	return errors.Join(err, s.bucket.Close())
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	if err := s.enter(ctx); err != nil {
		return schema.Blob{}, err
	}
	defer s.life.RUnlock()
	b, err := s.get(ctx, ref)
	if err == nil {
		s.reads.Add(1)
		s.readBytes.Add(ref.Size)
	}
	return b, err
}

func (s *Store) get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	a, ok := s.address(ref)
	if !ok {
		return schema.Blob{}, fmt.Errorf("%w: blob %s is in no segment of %s", schema.ErrNotFound, ref.Key, s)
	}
	if p, ok := s.packs.Load(a.Prefix); ok {
		if data, ok := p.(*pack).read(a, ref.Size); ok { //nolint:forcetypeassert // nothing else is in it
			return schema.NewBlob(data, nil), nil
		}
	}
	key := s.segmentKey(a.Prefix, a.Object)
	if ref.Size == 0 {
		_, err := s.bucket.Stat(ctx, key)
		return schema.Blob{}, s.readError(ref, err)
	}
	data := make([]byte, ref.Size)
	if err := s.bucket.Range(ctx, key, schema.ObjectVersion{}, a.Offset, data); err != nil {
		return schema.Blob{}, s.readError(ref, err)
	}
	return schema.NewBlob(data, nil), nil
}

// readError is the error of a blob that could not be read.
func (s *Store) readError(ref schema.BlobRef, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, schema.ErrInvalid) { // the segment ends before it
		return fmt.Errorf("%w: read blob %s: the segment is torn: %s", schema.ErrDataLoss, ref.Key, err.Error())
	}
	return fmt.Errorf("read blob %s: %w", ref.Key, err)
}

// address returns where a blob is stored, if its key has the form of a segment's address.
func (s *Store) address(ref schema.BlobRef) (schema.ObjectAddress, bool) {
	a, ok := schema.ParseObjectAddress(ref.Key)
	return a, ok && !a.Packed && !ref.Hashed() && ref.Size >= 0 && ref.Size <= maxBlob && a.Offset >= headerSize &&
		a.Offset%align == 0
}

// Locate implements store.Store. A blob that is not written yet has no location.
func (s *Store) Locate(_ context.Context, ref schema.BlobRef) (store.Location, bool, error) {
	a, ok := s.address(ref)
	if _, open := s.packs.Load(a.Prefix); !ok || open {
		return store.Location{}, false, nil
	}
	return store.Location{
		Bucket: s.bucket, Object: schema.Object{Key: s.segmentKey(a.Prefix, a.Object)}, Offset: a.Offset, Length: ref.Size,
	}, true, nil
}

// Traits implements store.Store.
func (s *Store) Traits() store.Traits { return store.Traits{Segments: true, Replicas: 1} }

// Addressed implements store.Store: no key is that of a cell.
func (s *Store) Addressed(schema.Key) (store.AttachedTable, bool) {
	return store.AttachedTable{}, false
}

// Refer implements store.Store.
func (s *Store) Refer(_ context.Context, tables []store.AttachedTable) error {
	return fmt.Errorf("%w: the blobs are cells of table %s, which a store in a bucket cannot reach: copy them by value",
		schema.ErrInvalid, tables[0])
}

// GC implements store.Store.
func (s *Store) GC(ctx context.Context, opts store.GCOptions, inUse func() []*schema.Snapshot) (store.GCReport, error) {
	if err := s.lostPartitions(ctx); err != nil {
		return store.GCReport{}, fmt.Errorf("collect garbage: nothing may be freed: %w", err)
	}
	report, err := s.Store.GC(ctx, opts, inUse)
	if err == nil && !opts.DryRun {
		err = s.recount(ctx)
	}
	return report, err
}

// finish is the end of a collection: an object that is deleted is free at once.
func (s *Store) finish(ctx context.Context, opts store.GCOptions, report *store.GCReport) error {
	if opts.DryRun {
		return nil
	}
	report.FreedBytes = report.DeadBytes
	return errors.Join(s.forgetMembers(ctx), s.forgetClusters(ctx), s.forget(ctx, dirProof, proofsLeft))
}

// lostPartitions reports a schema.ErrDataLoss if the catalog lacks a partition of which there is a copy: no partition is ever
// removed, and what its snapshots name would be taken for garbage. Copies are listed first: each is written after its
// partition.
func (s *Store) lostPartitions(ctx context.Context) error {
	copies := map[string]bool{}
	for _, dir := range []string{dirBackup, dirCatalog} {
		err := s.list(ctx, dir, func(name string, _ object.Info) error {
			if copies[name] = true; dir == dirCatalog {
				delete(copies, name)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(copies)) {
		return fmt.Errorf("%w: partition %q of the catalog of %s is gone, and its copy is there; bowstring store rebuild mends it",
			schema.ErrDataLoss, name, s)
	}
	return nil
}

// proofsLeft is how long what a proof writes is left: one takes seconds, and a process that was killed leaves it behind.
const proofsLeft = 24 * time.Hour

// forget removes the objects of a directory that were left as they are for longer than after.
func (s *Store) forget(ctx context.Context, dir string, after time.Duration) error {
	var gone []string
	err := s.list(ctx, dir, func(_ string, info object.Info) error {
		if s.lapsed(info, after) {
			gone = append(gone, info.Key)
		}
		return nil
	})
	for _, key := range gone {
		if err == nil {
			err = s.again(ctx, func(ctx context.Context) error { return s.bucket.Delete(ctx, key) })
		}
	}
	return err
}

// census is what is known of how many segments there are: the last collection counted them, and this process has added
// since.
type census struct {
	mu           sync.Mutex
	blobs, bytes int64 // as they were counted
	at           time.Time
	added        struct{ blobs, bytes int64 }
}

func (n *census) add(blobs, bytes int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.added.blobs += blobs
	n.added.bytes += bytes
}

// recount takes note of a collection that has ended since.
func (s *Store) recount(ctx context.Context) error {
	blobs, bytes, at, err := s.Counted(ctx)
	n := &s.census
	n.mu.Lock()
	defer n.mu.Unlock()
	if err == nil && !at.IsZero() && !at.Equal(n.at) {
		n.blobs, n.bytes, n.at = blobs, bytes, at
		n.added.blobs, n.added.bytes = 0, 0
	}
	return err
}

// Stats implements store.Store. Blobs counts segments. A collection of this process
// notices what other processes have added or removed: each read of the catalog would cost
// a request.
func (s *Store) Stats() store.Stats {
	put := s.Counters()
	n := &s.census
	n.mu.Lock()
	defer n.mu.Unlock()
	return store.Stats{
		BlobReads:    s.reads.Load(),
		BlobBytes:    s.readBytes.Load(),
		BlobWrites:   put.BlobWrites,
		BlobDedups:   put.BlobDedups,
		WrittenBytes: put.WrittenBytes,
		Blobs:        n.blobs + n.added.blobs,
		StoredBytes:  n.bytes + n.added.bytes,
		CountedAt:    n.at,
	}
}

// holder says for people which process this is.
func holder() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return fmt.Sprintf("%s, process %d", host, os.Getpid())
}
