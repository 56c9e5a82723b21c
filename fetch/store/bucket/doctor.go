package bucket

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"bowstring/fetch/object"
	"bowstring/fetch/store"
	"bowstring/fetch/store/protocol"
	"bowstring/schema"
)

// Names of the checks of Examine.
const (
	checkStore      = "store"
	checkConditions = "conditional writes"
	checkClock      = "clock"
	checkVersions   = "versions"
	checkCatalog    = "catalog"
	checkSegments   = "segments"
	checkLeftovers  = "leftovers"
	checkLifecycle  = "lifecycle"
)

const (
	// skewWarns is the difference between this clock and the server's from which Examine
	// warns. skewFails is about the one from which servers refuse signed requests.
	skewWarns = time.Minute
	skewFails = 14 * time.Minute
)

// Examine checks the bucket of the store under a URL, without opening the store. If the
// bucket cannot be reached, it returns an error.
func Examine(ctx context.Context, url string, opts Options) (found store.Findings, err error) {
	s, err := reach(ctx, url, opts)
	if err != nil {
		return nil, fmt.Errorf("examine store: %w", err)
	}
	defer func() {
		s.end()
		err = errors.Join(err, s.bucket.Close())
	}()
	if _, err := s.format(ctx); err != nil {
		return nil, fmt.Errorf("examine store: %w", err)
	}
	return s.examine(ctx, true), nil
}

// Examine checks the bucket with a few small requests, and writes nothing.
func (s *Store) Examine(ctx context.Context) store.Findings { return s.examine(ctx, false) }

// examine makes the cheap checks, and, if thorough, all of them. If the bucket cannot be
// read, the other checks are left out.
func (s *Store) examine(ctx context.Context, thorough bool) (f store.Findings) {
	begun := time.Now()
	info, err := s.bucket.Stat(ctx, s.key(keyFormat))
	if err != nil {
		f.Problem(checkStore, "see to the way to the bucket, and to what its credentials may", "it cannot be read: %v", err)
		return f
	}
	f.OK(checkStore, "it answers within %s", time.Since(begun).Round(time.Millisecond))
	s.examineClock(&f, info)
	if !thorough {
		return f
	}
	s.examineConditions(ctx, &f)
	s.examineVersions(&f, info)
	s.examineCatalog(ctx, &f)
	s.examineSegments(ctx, &f)
	return f
}

// examineClock compares this clock with the server's. Leases and rows lapse by the
// server's, and signatures are checked against it.
func (s *Store) examineClock(f *store.Findings, info object.Info) {
	if info.Date.IsZero() || info.Modified.IsZero() {
		f.Problem(checkClock, "take a server that sends Date and Last-Modified",
			"the server does not say what time it is: a process that has died is never taken for dead, and collections wait for it")
		return
	}
	switch skew := s.now().Sub(info.Date).Abs(); {
	case skew > skewFails:
		f.Problem(checkClock, "set this machine's clock, by NTP",
			"this machine's clock is %s from the server's, which refuses what is signed at such a time", skew.Round(time.Second))
	case skew > skewWarns:
		f.Warning(checkClock, "set this machine's clock, by NTP", "this machine's clock is %s from the server's",
			skew.Round(time.Second))
	default:
		f.OK(checkClock, "this machine's clock agrees with the server's")
	}
}

// examineConditions checks with one writer that conditions hold. The race of several
// writers is left to store init, because it takes hundreds of requests.
func (s *Store) examineConditions(ctx context.Context, f *store.Findings) {
	p := &proof{buckets: []object.Bucket{s.bucket}, prefix: s.prefix + dirProof + rand.Text() + "/"}
	defer p.clean(context.WithoutCancel(ctx))
	switch err := p.conditions(ctx); {
	case err == nil:
		f.OK(checkConditions, "a write whose condition does not hold is refused; store init has raced %d writers", proofWriters)
	case errors.Is(err, schema.ErrDenied):
		f.Warning(checkConditions, "give credentials that may write, where this machine is to import", "this process may only read: %v", err)
	default:
		f.Problem(checkConditions, "stop all imports, and copy the store into another bucket", "%v", err)
	}
}

// examineVersions warns of buckets that keep old versions, which cost money.
func (s *Store) examineVersions(f *store.Findings, info object.Info) {
	if strings.HasPrefix(s.bucket.URL(), "s3://") && info.Version.ID != "" && info.Version.ID != "null" {
		f.Warning(checkVersions, "a lifecycle rule that removes noncurrent versions after some days",
			"the bucket keeps versions: what collections remove is still paid for, and so is each earlier state of the catalog")
	}
	if !strings.HasPrefix(s.bucket.URL(), "file://") {
		// Reading lifecycle rules needs rights that a store does not need otherwise.
		f.OK(checkLifecycle, "not looked at: no rule may expire or archive objects under %s; segments are never rewritten, and are "+
			"needed until a collection removes them. Bowstring leaves no unfinished uploads", s)
	}
}

// examineCatalog reads each partition, and checks that datasets with snapshots have
// copies.
func (s *Store) examineCatalog(ctx context.Context, f *store.Findings) {
	names, err := database{s}.Partitions(ctx)
	if err != nil {
		f.Problem(checkCatalog, "see to what its credentials may", "%v", err)
		return
	}
	copies := map[string]bool{}
	if err := s.list(ctx, dirBackup, func(name string, _ object.Info) error { copies[name] = true; return nil }); err != nil {
		f.Problem(checkCatalog, "see to what its credentials may", "%v", err)
		return
	}
	bad, without := 0, 0
	for _, name := range names {
		p, err := database{s}.Load(ctx, name)
		if err != nil {
			bad++
			f.Problem(checkCatalog, "bowstring store rebuild "+s.String(), "%v", err)
			continue
		}
		// Only a dataset with snapshots would lose anything without a copy.
		if snaps, err := protocol.Snapshots(name, p.Rows); name != protocol.Control && err == nil && len(snaps) > 0 && !copies[name] {
			without++
		}
	}
	if without > 0 {
		f.Warning(checkCatalog, "commit to them, or tag a snapshot: each writes a copy", "%d datasets have no copy of their catalog", without)
	}
	if bad == 0 {
		f.OK(checkCatalog, "%d partitions can be read", len(names))
	}
}

// examineSegments lists the segments, and checks their sizes and storage classes and
// whether snapshots lack any.
func (s *Store) examineSegments(ctx context.Context, f *store.Findings) {
	const access = "see to what its credentials may"
	classes, sizes, strange, torn := map[string]int{}, map[string]int64{}, 0, 0
	err := s.list(ctx, dirSegments, func(name string, info object.Info) error {
		if _, _, ok := parseSegmentName(name); !ok {
			strange++
			return nil
		}
		if sizes[name] = info.Size; info.Size < headerSize+trailerSize {
			torn++
		}
		if info.Class != "" {
			classes[info.Class]++
		}
		return nil
	})
	if err != nil {
		f.Problem(checkSegments, access, "%v", err)
		return
	}
	for class, of := range classes {
		f.Warning(checkSegments, "take the lifecycle rule away that moves them, and restore them", "%d of %d segments are of storage class %s, from which reads "+
			"cost more or fail", of, len(sizes), class)
	}
	if strange > 0 {
		f.Warning(checkSegments, "remove them: nothing of the store reads them", "%d objects under %s are no segments", strange, s.key(dirSegments))
	}
	const mend = "bowstring verify --repair with --from, --spill or --source, or copy the snapshots from where they are whole"
	if torn > 0 {
		f.Problem(checkSegments, mend, "%d segments are torn: they are shorter than any segment is", torn)
	}
	// A snapshot may need more segments than a list shows that is older than its commit.
	missing, err := s.lacking(ctx, sizes)
	if err == nil && len(missing) > 0 { // a snapshot may have been committed since the list was made, which the next one shows
		missing, err = s.confirmLacking(ctx, missing)
	}
	switch {
	case errors.Is(err, schema.ErrDataLoss): // the catalog, which is reported
		return
	case err != nil:
		f.Problem(checkSegments, access, "%v", err)
		return
	}
	for _, m := range missing {
		f.Problem(checkSegments, mend, "%s@%d lacks %d segments, %s the first", m.Dataset, m.Snapshot, len(m.Segments), m.Segments[0])
	}
	if len(classes) == 0 && torn == 0 && len(missing) == 0 {
		f.OK(checkSegments, "%d segments, all of the usual storage class, and none lacks", len(sizes))
	}
	s.examineLeftovers(ctx, f)
}

// confirmLacking returns those snapshots of before that still lack segments with a new
// list. A snapshot that was committed after the first list was made needs segments that
// are not on it.
func (s *Store) confirmLacking(ctx context.Context, before []MissingSegments) ([]MissingSegments, error) {
	sizes := map[string]int64{}
	if err := s.list(ctx, dirSegments, func(name string, info object.Info) error { sizes[name] = info.Size; return nil }); err != nil {
		return nil, err
	}
	now, err := s.lacking(ctx, sizes)
	return slices.DeleteFunc(now, func(m MissingSegments) bool {
		return !slices.ContainsFunc(before, func(b MissingSegments) bool { return b.Dataset == m.Dataset && b.Snapshot == m.Snapshot })
	}), err
}

// examineLeftovers reports what a collection would remove. It changes nothing.
func (s *Store) examineLeftovers(ctx context.Context, f *store.Findings) {
	err := s.lostPartitions(ctx)
	var report store.GCReport
	if err == nil {
		p := s.protocol()
		report, err = p.GC(ctx, store.GCOptions{DryRun: true}, nil)
		err = errors.Join(err, p.Close())
	}
	switch {
	case errors.Is(err, schema.ErrDataLoss):
		f.Problem(checkLeftovers, "bowstring store rebuild "+s.String(), "no collection can be made: %v", err)
	case err != nil:
		f.Problem(checkLeftovers, "see to what its credentials may", "%v", err)
	case report.DeadBlobs > 0:
		f.Warning(checkLeftovers, "if a dataset is missing, bowstring store rebuild "+s.String()+"; else bowstring gc", "no snapshot names %d segments of %d bytes, and no import at work has them: what was "+
			"dropped, and imports that came to nothing", report.DeadBlobs, report.DeadBytes)
	default:
		f.OK(checkLeftovers, "each segment is named by a snapshot, or of an import at work")
	}
}
