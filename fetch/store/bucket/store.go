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

	"golang.org/x/sync/errgroup"

	"bowstring/fetch/object"
	"bowstring/fetch/store"
	"bowstring/fetch/store/protocol"
	"bowstring/schema"
)

var _ store.Store = (*Store)(nil)

// Options configures a Store. The zero value works.
type Options struct {
	// Logger receives messages for operators. Default: slog.Default().
	Logger *slog.Logger
	// Bucket has the options of the connection to the bucket.
	Bucket object.Options
	// SegmentBytes is the size at which a new segment begins. Default: 64 MiB, at most
	// 256 MiB.
	SegmentBytes int64
	// Uploads is how many segments are written at once. Default: 4. That many are in
	// memory, and one more for each open ingest.
	Uploads int
	// Renew is how often the process writes its row. Default: 30 s. Collections wait
	// about that long for the process.
	Renew time.Duration
	// Lapse is the age from which a process's row counts as that of a dead process.
	// Default: 8 times Renew.
	Lapse time.Duration
	// Clock returns the current time. Default: time.Now.
	Clock func() time.Time
	// Connections is how many more connections Open makes, so that reads that follow need
	// not wait for them. Each costs a request. Default: none.
	Connections int
}

const (
	// defaultSegment balances requests against memory: each segment costs one request to
	// write, and is in memory until then. maxSegment bounds the option, and so the offset
	// of any blob.
	defaultSegment = 64 << 20
	maxSegment     = 256 << 20
	defaultUploads = 4
	defaultRenew   = 30 * time.Second
	// lapseRenewals is how many renewals a process may miss: with slow answers and
	// repeated requests a few may be late.
	lapseRenewals = 8
	// inlineRecord is the size up to which a snapshot's record is stored in the catalog.
	// Reading it there saves a round trip. It is larger than with a database, because
	// each request costs more.
	inlineRecord = 8 << 10
)

// withDefaults returns the options with defaults in place of zeros.
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

// Store is a store.Store in a bucket. Several processes may use one at the same time. It
// is safe for concurrent use from Open to Close.
type Store struct {
	*protocol.Store // the catalog, ingests and collections, over database

	bucket  object.Bucket
	prefix  string // of all keys: empty, or ending in a slash
	id      string // of the store
	options Options
	log     *slog.Logger

	partitions seenPartitions
	members    memberVersions
	leases     leases
	packs      sync.Map // schema.ObjectPrefix to *pack, of open ingests
	uploads    places
	repairs    repairs
	census     census

	// life is read-locked by each call, and locked by Close. It guards closed.
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

// Open opens the store under a URL: s3://BUCKET/PREFIX, gs://, az:// or file://. If there
// is no store, the error is a schema.ErrNotFound; [Init] makes one. The caller closes the
// store.
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

// reach returns a store without making a request. Its protocol.Store is not set.
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

// over returns a store in a bucket, under a prefix, without making a request.
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

// begin reads FORMAT, and prepares the store for use. The state of collections is read at the same time, which saves
// a round trip, and connections are made. If there is no store of this format, neither counts.
func (s *Store) begin(ctx context.Context) error {
	s.Store = s.protocol()
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	var g errgroup.Group
	g.Go(func() error { return s.recount(within) })
	for range s.options.Connections { // requests at the same time, each on a connection of its own
		g.Go(func() error {
			_, _ = s.bucket.Stat(within, s.key(keyFormat)) // the read of FORMAT says what is wrong
			return nil
		})
	}
	f, err := s.format(ctx)
	if err != nil {
		cancel()
	}
	if failed := g.Wait(); err == nil {
		err = failed
	}
	if err != nil {
		return errors.Join(err, s.Store.Close())
	}
	s.id = f.ID
	return nil
}

// Prepare writes the row of this process, which would cost the first reader two round trips. The bucket has no memory
// to prepare.
func (s *Store) Prepare(ctx context.Context, _ int64) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	return s.Ready(ctx)
}

// protocol returns a protocol.Store over the bucket.
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

// format reads FORMAT. A missing one is a schema.ErrNotFound, one of another program or
// version a schema.ErrInvalid.
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

// Where names the store in errors.
func (s *Store) Where() string { return "the store in " + s.String() }

// Bucket returns the bucket of the store's objects.
func (s *Store) Bucket() object.Bucket { return s.bucket }

// key is the key of an object of the store.
func (s *Store) key(name string) string { return s.prefix + name }

// segmentKey is the key of a segment's object.
func (s *Store) segmentKey(prefix schema.ObjectPrefix, number uint32) string {
	return s.key(dirSegments + segmentName(prefix, number))
}

// now is the current time, for timestamps only.
func (s *Store) now() time.Time { return s.options.Clock() }

const (
	// tries is how often a repeatable request is made.
	tries = 5
	// firstPause is the mean pause before the second try. It doubles with each further
	// one.
	firstPause = 100 * time.Millisecond
	// answerWithin is how long a small request may take.
	answerWithin = 30 * time.Second
)

// again calls f, which must be safe to repeat, until it succeeds, fails for good, or has
// failed tries times. Each call has answerWithin.
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

// errLate is why a request was cancelled that took too long. It can be repeated.
var errLate = fmt.Errorf("%w: no answer within %s", schema.ErrUnavailable, answerWithin)

// pauseAfter waits before the n-th repetition, counted from 0, of a request that failed
// with err: as long as the server asks for, or else as pause does.
func pauseAfter(ctx context.Context, err error, n int) error {
	var throttled *object.ThrottledError
	if errors.As(err, &throttled) && throttled.After > 0 {
		return wait(ctx, min(throttled.After, answerWithin))
	}
	return pause(ctx, n)
}

// pause waits before the n-th repetition, counted from 0: firstPause times 2^n, varied by
// half, so that processes that failed together do not repeat together.
func pause(ctx context.Context, n int) error {
	d := firstPause << min(n, 6)
	return wait(ctx, d/2+time.Duration(rand.Int64N(int64(d))))
}

// wait waits for d, or returns the cause of ctx.
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

// Close implements store.Store. It stops a running collection and the writing of
// segments.
func (s *Store) Close() error {
	s.end()
	err := s.Store.Close()
	s.life.Lock()
	defer s.life.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	// The packs of ingests that were not closed hold memory and run uploads.
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

// get reads a blob from the pack that is writing it, or with one request from the bucket.
func (s *Store) get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	a, ok := s.address(ref)
	if !ok {
		return schema.Blob{}, fmt.Errorf("%w: blob %s is in no segment of %s", schema.ErrNotFound, ref.Key, s)
	}
	// The manifest of an ingest is read before its segments are written.
	if p, ok := s.packs.Load(a.Prefix); ok {
		if data, ok := p.(*pack).read(a, ref.Size); ok { //nolint:forcetypeassert // nothing else is in it
			return schema.NewBlob(data, nil), nil
		}
	}
	key := s.segmentKey(a.Prefix, a.Object)
	// An empty blob has no bytes to read, but its segment must exist.
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

// readError is the error for a blob that could not be read.
func (s *Store) readError(ref schema.BlobRef, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, schema.ErrInvalid) { // the segment ends before it
		return fmt.Errorf("%w: read blob %s: the segment is torn: %s", schema.ErrDataLoss, ref.Key, err.Error())
	}
	return fmt.Errorf("read blob %s: %w", ref.Key, err)
}

// address returns the address of a blob; false if the key is not the address of a blob in
// a segment of a store.
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

// Addressed implements store.Store: no key is the address of a cell in a table.
func (s *Store) Addressed(schema.Key) (store.AttachedTable, bool) {
	return store.AttachedTable{}, false
}

// Refer implements store.Store.
func (s *Store) Refer(_ context.Context, tables []store.AttachedTable) error {
	return fmt.Errorf("%w: the blobs are cells of table %s, which a store in a bucket cannot reach: copy them by value",
		schema.ErrInvalid, tables[0])
}

// GC implements store.Store. It frees nothing if a partition of the catalog is missing.
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

// finish ends a collection: deleted objects are free at once. It also removes the
// lapsed objects of processes, clusters and proofs.
func (s *Store) finish(ctx context.Context, opts store.GCOptions, report *store.GCReport) error {
	if opts.DryRun {
		return nil
	}
	report.FreedBytes = report.DeadBytes
	return errors.Join(s.forgetMembers(ctx), s.forgetClusters(ctx), s.forget(ctx, dirProof, proofsLeft))
}

// lostPartitions returns a schema.ErrDataLoss if a partition with a copy is missing from
// the catalog. Partitions are never removed, so it was lost, and a collection would
// remove the segments of its snapshots. Copies are listed first, because each is written
// after its partition.
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

// proofsLeft is how long the objects of a proof are left. A proof takes seconds, and
// removes its objects unless its process is killed.
const proofsLeft = 24 * time.Hour

// forget removes the objects of a directory that were last written longer ago than after.
func (s *Store) forget(ctx context.Context, dir string, after time.Duration) error {
	var gone []string
	err := s.list(ctx, dir, func(_ string, info object.Info) error {
		if s.lapsed(info, after) {
			gone = append(gone, info.Key)
		}
		return nil
	})
	// Objects are deleted after the list, so that the list does not change while it is
	// read.
	for _, key := range gone {
		if err == nil {
			err = s.again(ctx, func(ctx context.Context) error { return s.bucket.Delete(ctx, key) })
		}
	}
	return err
}

// census is the number and size of the segments, as far as known: what the last
// collection counted, and what this process has added or removed since. It is safe for
// concurrent use.
type census struct {
	mu           sync.Mutex
	blobs, bytes int64     // as counted
	at           time.Time // when they were counted
	added        struct{ blobs, bytes int64 }
}

// add counts segments that were written, or, with negative numbers, removed.
func (n *census) add(blobs, bytes int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.added.blobs += blobs
	n.added.bytes += bytes
}

// recount takes the count of the last collection, if there was one since the last call.
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

// Stats implements store.Store. Blobs counts segments. It includes the changes by other
// processes only after a collection of this process, because reading the catalog for each
// call would cost a request.
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

// holder describes this process in messages.
func holder() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return fmt.Sprintf("%s, process %d", host, os.Getpid())
}
