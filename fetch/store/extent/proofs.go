package extent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"bowstring/fetch/store"
	"bowstring/schema"
)

const (
	// keepEvery is how long a learned checksum waits to be stored, and keepMany how many
	// wait at most. Each write is an ingest, which is why many are written together.
	keepEvery = 5 * time.Second
	keepMany  = 1 << 16
	// keepWithin is how long Close tries to store the rest. Unstored ones are learned
	// again, so it need not be long.
	keepWithin = 10 * time.Second
	// loadsAtOnce is how many sets have their stored checksums read at the same time.
	loadsAtOnce = 16
	// keepTries bounds how often a process repeats a write that conflicts with those of
	// others.
	keepTries = 16
	// mostProofs is how many checksums are in memory, at 20 to 40 bytes each. Blobs
	// beyond it are read without comparison.
	mostProofs = 32 << 20
	// mostInRun bounds the checksums of one blob, so that joining runs does not rewrite
	// ever larger ones.
	mostInRun = 4 << 20
	// joinFactor: a run with at most joinFactor times the checksums of the one behind it is joined with it.
	joinFactor = 2
)

// proofs are the checksums of unproven blobs: those learned by this process, and those
// that other processes have stored.
//
// A checksum is learned in memory, where all later reads here are compared with it. A
// goroutine (keepAll), which runs while there are new checksums, writes many together
// into the store. Before that it reads those that other processes have stored since,
// which take precedence over checksums learned here: the first one stored stays.
type proofs struct {
	s    *Store
	log  *slog.Logger
	most int64         // how many may be in memory
	turn chan struct{} // taken by the goroutine that stores checksums: one at a time

	loads flights[schema.ObjectPrefix, struct{}]

	mu      sync.RWMutex
	sets    map[schema.ObjectPrefix]*proofSet
	count   int64         // of checksums in memory
	waiting int64         // of those, not stored yet
	keeping bool          // keepAll runs
	full    chan struct{} // has a token when keepMany wait
	beyond  bool          // the log says already that there are too many
	stats   store.ProofStats
}

// proofSet holds the checksums of one object set. Its fields are guarded by proofs.mu.
type proofSet struct {
	datasets []string                           // that name it; learned checksums are stored in the first one
	known    map[schema.Sum]schema.Sum          // checksum by the mark that references without checksum have
	bytes    int64                              // of the blobs that are known, about
	fresh    map[schema.Sum]schema.BlobRef      // the known ones that are not stored yet
	seen     map[string]map[store.ProofRun]bool // runs that are in known, by dataset
	whole    bool                               // the stored checksums of all datasets were read
	reading  int                                // stored checksums are being read: they must not be forgotten now
	used     time.Time
}

// forget drops all known checksums, which are read from the store again when they are
// needed.
func (s *proofSet) forget() {
	s.known, s.seen = map[schema.Sum]schema.Sum{}, map[string]map[store.ProofRun]bool{}
	s.whole, s.bytes = false, 0
}

func (p *proofs) init(s *Store, log *slog.Logger, most int64) {
	p.s, p.log, p.most, p.loads.s = s, log, most, s
	p.sets = map[schema.ObjectPrefix]*proofSet{}
	p.turn, p.full = make(chan struct{}, 1), make(chan struct{}, 1)
}

// learn adds the sets of a snapshot that have blobs without checksums. A new dataset
// makes the set incomplete, until that dataset's checksums were read as well.
func (p *proofs) learn(snap *schema.Snapshot) {
	for _, set := range snap.Sets {
		if set.Unproven.IsZero() {
			continue
		}
		p.mu.RLock()
		known := p.sets[set.Prefix] != nil && slices.Contains(p.sets[set.Prefix].datasets, snap.Dataset)
		p.mu.RUnlock()
		if known {
			continue
		}
		p.mu.Lock()
		one := p.sets[set.Prefix]
		if one == nil {
			one = &proofSet{fresh: map[schema.Sum]schema.BlobRef{}}
			one.forget()
			p.sets[set.Prefix] = one
		}
		if !slices.Contains(one.datasets, snap.Dataset) {
			one.datasets = append(one.datasets, snap.Dataset)
			one.whole = false
		}
		p.mu.Unlock()
	}
}

// Proven implements store.Prover.
func (s *Store) Proven(ref schema.BlobRef) schema.BlobRef {
	if !ref.Unproven() {
		return ref
	}
	p := &s.proofs
	p.mu.RLock()
	defer p.mu.RUnlock()
	if set := p.sets[prefixOf(ref.Key)]; set != nil {
		if sum, ok := set.known[ref.Sum]; ok {
			return ref.Prove(sum)
		}
	}
	return ref
}

// Prove implements store.Prover.
func (s *Store) Prove(ctx context.Context, ref schema.BlobRef, data []byte) (schema.BlobRef, error) {
	if err := s.enter(ctx); err != nil {
		return schema.BlobRef{}, err
	}
	defer s.life.RUnlock()
	if int64(len(data)) != ref.Size {
		return schema.BlobRef{}, ref.Check(data)
	}
	p, prefix := &s.proofs, prefixOf(ref.Key)
	sum := schema.Checksum(data)
	for {
		if err := p.ready(ctx, prefix); err != nil {
			return schema.BlobRef{}, err
		}
		was, ok := p.add(prefix, ref, sum)
		switch {
		case ok && was == sum:
			return ref.Prove(sum), nil
		case ok:
			return schema.BlobRef{}, s.differs(ctx, ref, was, sum)
		}
	}
}

// add records the checksum of a blob that was read, and returns the first one known of
// it. ok is false if the stored checksums are not all in memory, without which it is
// unknown whether this is the first.
func (p *proofs) add(prefix schema.ObjectPrefix, ref schema.BlobRef, sum schema.Sum) (known schema.Sum, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	set := p.sets[prefix]
	if !set.whole {
		return 0, false
	}
	set.used = time.Now()
	if was, known := set.known[ref.Sum]; known {
		p.stats.Compared++
		if was != sum {
			p.stats.Wrong++
		}
		return was, true
	}
	if p.count >= p.most {
		if !p.beyond {
			p.beyond = true
			p.log.Warn("more blobs were attached without checksums than are kept in memory: the others get none", "most", p.most)
		}
		return sum, true
	}
	p.stats.Learned++
	p.count++
	p.waiting++
	set.known[ref.Sum] = sum
	set.bytes += ref.Size
	set.fresh[ref.Sum] = ref.Prove(sum)
	if p.waiting >= keepMany {
		select {
		case p.full <- struct{}{}:
		default:
		}
	}
	if !p.keeping {
		p.keeping = true
		p.s.goAfter(p.keepAll)
	}
	return sum, true
}

// differs is the error of a blob whose bytes differ from those of its first read.
func (s *Store) differs(ctx context.Context, ref schema.BlobRef, was, is schema.Sum) error {
	where := "its object"
	if at, err := s.place(ctx, ref); err == nil {
		where = fmt.Sprintf("object %s of %s", schema.Quote(at.object.Key), at.url)
	}
	return fmt.Errorf("%w: blob %s in %s has checksum %s, and had %s when it was first read in the same version: one of the "+
		"two reads brought damaged bytes; attach it again with --prove if it was the first", schema.ErrDataLoss, ref.Key,
		where, is, was)
}

// ready makes sure that all stored checksums of a set are in memory.
func (p *proofs) ready(ctx context.Context, prefix schema.ObjectPrefix) error {
	there := func() (named, ready bool) {
		p.mu.RLock()
		defer p.mu.RUnlock()
		set := p.sets[prefix]
		return set != nil, set != nil && set.whole
	}
	named, ready := there()
	if !named {
		if err := p.s.scans.find(ctx, prefix); err != nil {
			return err
		}
		if named, ready = there(); !named {
			return fmt.Errorf("%w: no snapshot says that blobs of object set %s have no checksums", schema.ErrDataLoss, prefix)
		}
	}
	if ready {
		return nil
	}
	return p.load(ctx, prefix)
}

// load reads the checksums of a set that were stored since it was last read, from each
// dataset that names it. If another dataset joins meanwhile, the set stays incomplete and
// the caller loads again.
func (p *proofs) load(ctx context.Context, prefix schema.ObjectPrefix) error {
	_, err := p.loads.do(ctx, prefix, func(ctx context.Context) (struct{}, error) {
		p.mu.RLock()
		datasets := slices.Clone(p.sets[prefix].datasets)
		p.mu.RUnlock()
		for _, dataset := range datasets {
			if _, err := p.read(ctx, prefix, dataset); err != nil {
				return struct{}{}, err
			}
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if set := p.sets[prefix]; slices.Equal(set.datasets, datasets) {
			set.whole, set.used = true, time.Now()
		}
		p.spareLocked(prefix)
		return struct{}{}, nil
	})
	if err != nil {
		return fmt.Errorf("the checksums of object set %s: %w", prefix, err)
	}
	return nil
}

// read reads the runs of a dataset that were not read before, and returns all runs that
// there are. A checksum that contradicts one learned here is logged as an error: one of
// the two reads had damaged bytes.
func (p *proofs) read(ctx context.Context, prefix schema.ObjectPrefix, dataset string) ([]store.ProofRun, error) {
	runs, err := p.s.Store.Proofs(ctx, dataset, prefix)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	seen := maps.Clone(p.sets[prefix].seen[dataset])
	p.sets[prefix].reading++
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.sets[prefix].reading--
	}()
	for _, run := range runs {
		if seen[run] {
			continue
		}
		list, err := p.run(ctx, prefix, run)
		if err != nil {
			return nil, err
		}
		var wrong []disagreement
		for part := range slices.Chunk(list, mergeAtOnce) {
			p.mu.Lock()
			wrong = append(wrong, p.mergeLocked(prefix, run, part)...)
			p.mu.Unlock()
		}
		for _, ref := range wrong {
			p.log.ErrorContext(ctx, "a blob that was read here has another content than where it was read first",
				"error", p.s.differs(ctx, ref.is, ref.was, ref.is.Sum))
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sets[prefix].seen[dataset] = setOf(runs)
	return runs, nil
}

// run reads one blob of checksums.
func (p *proofs) run(ctx context.Context, prefix schema.ObjectPrefix, run store.ProofRun) ([]store.Learned, error) {
	blob, err := p.s.Store.Get(ctx, run.BlobRef)
	if errors.Is(err, schema.ErrNotFound) {
		gone := err.Error() // what is missing here is lost, not absent
		return nil, fmt.Errorf("%w: %s", schema.ErrDataLoss, gone)
	} else if err != nil {
		return nil, err
	}
	defer blob.Release()
	list := make([]store.Learned, 0, run.Blobs)
	err = run.Each(prefix, blob.Bytes(), func(l store.Learned) error {
		list = append(list, l)
		return nil
	})
	return list, err
}

// disagreement is a blob whose bytes had another checksum here than where it was read
// first.
type disagreement struct {
	is  schema.BlobRef // as it was read here
	was schema.Sum
}

// mergeLocked adds stored checksums, which take precedence over those learned here.
func (p *proofs) mergeLocked(prefix schema.ObjectPrefix, run store.ProofRun,
	list []store.Learned) (wrong []disagreement) {
	set := p.sets[prefix]
	news := int64(0)
	for _, l := range list {
		if _, known := set.known[l.Stand]; !known {
			news++
			set.known[l.Stand] = l.Sum
			continue
		}
		own, fresh := set.fresh[l.Stand]
		if !fresh {
			continue // another dataset has kept it, too: the first that was found stays
		}
		delete(set.fresh, l.Stand)
		p.waiting--
		if own.Sum != l.Sum {
			p.stats.Wrong++
			set.known[l.Stand] = l.Sum
			wrong = append(wrong, disagreement{own, l.Sum})
		}
	}
	p.count += news
	set.bytes += run.BytesOf(news)
	return wrong
}

// mergeAtOnce is how many checksums are merged under one lock, so that reads wait a short
// time only.
const mergeAtOnce = 1 << 12

func setOf(runs []store.ProofRun) map[store.ProofRun]bool {
	set := make(map[store.ProofRun]bool, len(runs))
	for _, run := range runs {
		set[run] = true
	}
	return set
}

// spareLocked forgets the stored checksums of other sets, least recently used first,
// until the limit is kept. Sets with unstored checksums or running reads stay.
func (p *proofs) spareLocked(but schema.ObjectPrefix) {
	for p.count > p.most {
		var oldest *proofSet
		for prefix, set := range p.sets {
			if prefix != but && len(set.known) > 0 && len(set.fresh) == 0 && set.reading == 0 &&
				(oldest == nil || set.used.Before(oldest.used)) {
				oldest = set
			}
		}
		if oldest == nil {
			return
		}
		p.count -= int64(len(oldest.known))
		oldest.forget()
	}
}

// keepAll stores learned checksums until none is left. It ends then, so that an idle
// store has no goroutine; add starts it again. When the store closes it tries once more.
func (p *proofs) keepAll() {
	timer := time.NewTimer(keepEvery)
	defer timer.Stop()
	for {
		ctx, cancel, last := p.s.ctx, func() {}, false
		select {
		case <-timer.C:
		case <-p.full:
		case <-p.s.ctx.Done():
			last = true
			ctx, cancel = context.WithTimeout(context.WithoutCancel(p.s.ctx), keepWithin)
		}
		err := p.keep(ctx)
		cancel()
		p.mu.Lock()
		if last || p.waiting == 0 {
			if p.waiting > 0 {
				p.log.Warn("checksums that were learned are not kept: the next reads learn them again", "blobs", p.waiting,
					"error", err)
			}
			p.keeping = false
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		if err != nil && p.s.ctx.Err() == nil {
			p.log.Warn("checksums that were learned cannot be kept yet", "error", err)
		}
		timer.Reset(keepEvery)
	}
}

// KeepProofs implements store.Prover.
func (s *Store) KeepProofs(ctx context.Context) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	return s.proofs.keep(ctx)
}

// keep stores the checksums that are not stored yet. An error of one set does not stop
// the others.
func (p *proofs) keep(ctx context.Context) error {
	select {
	case p.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-p.turn }()
	var list []schema.ObjectPrefix
	p.mu.RLock()
	for prefix, set := range p.sets {
		if len(set.fresh) > 0 {
			list = append(list, prefix)
		}
	}
	p.mu.RUnlock()
	var errs []error
	for _, prefix := range list {
		if err := p.keepSet(ctx, prefix); err != nil {
			errs = append(errs, fmt.Errorf("keep the checksums of object set %s: %w", prefix, err))
		}
	}
	return errors.Join(errs...)
}

// keepSet stores the checksums of a set in the first of its datasets that still exists.
func (p *proofs) keepSet(ctx context.Context, prefix schema.ObjectPrefix) (err error) {
	p.mu.RLock()
	datasets := slices.Clone(p.sets[prefix].datasets)
	p.mu.RUnlock()
	for _, dataset := range datasets {
		if err = p.keepIn(ctx, prefix, dataset); !errors.Is(err, schema.ErrNotFound) {
			return err
		}
		p.mu.Lock() // it was dropped
		set := p.sets[prefix]
		set.datasets = slices.DeleteFunc(set.datasets, func(d string) bool { return d == dataset })
		p.mu.Unlock()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if set := p.sets[prefix]; len(set.datasets) == 0 { // streams may read it on, and nothing needs what they learn
		p.waiting -= int64(len(set.fresh))
		clear(set.fresh)
	}
	return nil
}

// keepIn stores the checksums of a set in one dataset. Other processes add to the same
// list: after a conflict it reads theirs and tries again, up to keepTries times.
func (p *proofs) keepIn(ctx context.Context, prefix schema.ObjectPrefix, dataset string) (err error) {
	if _, err := p.read(ctx, prefix, dataset); err != nil {
		return err
	}
	in, err := p.s.Begin(ctx, dataset)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	for try := 1; ; try++ {
		was, err := p.read(ctx, prefix, dataset)
		if err != nil {
			return err
		}
		list, bytes := p.freshOf(prefix)
		if len(list) == 0 {
			return nil
		}
		now, err := p.join(ctx, prefix, was, list, bytes, in)
		if err == nil {
			err = in.SaveProofs(ctx, prefix, was, now)
		}
		switch {
		case err == nil:
			p.kept(prefix, dataset, list, now)
			return nil
		case !errors.Is(err, schema.ErrConflict) || try == keepTries:
			return err
		}
	}
}

// freshOf lists the unstored checksums of a set, in order, and returns how many bytes
// those blobs have.
func (p *proofs) freshOf(prefix schema.ObjectPrefix) (list []store.Learned, bytes int64) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	fresh := p.sets[prefix].fresh
	list = make([]store.Learned, 0, len(fresh))
	for stand, ref := range fresh {
		list = append(list, store.Learned{Stand: stand, Sum: ref.Sum})
		bytes += ref.Size
	}
	slices.SortFunc(list, byStand)
	return list, bytes
}

func byStand(a, b store.Learned) int { return cmp.Compare(a.Stand, b.Stand) }

// join writes a run of new checksums, merged with runs of about the same size or smaller,
// and returns the runs that the set then has. As in a log-structured merge, the number of
// runs grows with the logarithm of the checksums, and each is rewritten as rarely.
func (p *proofs) join(ctx context.Context, prefix schema.ObjectPrefix, was []store.ProofRun, list []store.Learned,
	bytes int64, in store.Ingest) ([]store.ProofRun, error) {
	rest := slices.Clone(was)
	slices.SortStableFunc(rest, func(a, b store.ProofRun) int { return cmp.Compare(b.Blobs, a.Blobs) })
	for len(rest) > 0 {
		last := rest[len(rest)-1]
		if last.Blobs > joinFactor*int64(len(list)) || last.Blobs+int64(len(list)) > mostInRun {
			break
		}
		more, err := p.run(ctx, prefix, last)
		if err != nil {
			return nil, err
		}
		list = append(more, list...)
		bytes += last.Bytes
		rest = rest[:len(rest)-1]
	}
	slices.SortFunc(list, byStand)
	ref, err := in.Put(ctx, store.EncodeProofRun(prefix, list))
	if err != nil {
		return nil, err
	}
	made := store.ProofRun{BlobRef: ref, Unproven: schema.Unproven{Blobs: int64(len(list)), Bytes: bytes}}
	return append(rest, made), nil
}

// kept records that checksums were stored.
func (p *proofs) kept(prefix schema.ObjectPrefix, dataset string, list []store.Learned, now []store.ProofRun) {
	p.mu.Lock()
	defer p.mu.Unlock()
	set := p.sets[prefix]
	for _, l := range list {
		if ref, ok := set.fresh[l.Stand]; ok && ref.Sum == l.Sum {
			delete(set.fresh, l.Stand)
			p.waiting--
		}
	}
	set.seen[dataset] = setOf(now)
}

// LearnProofs implements store.Prover.
func (s *Store) LearnProofs(ctx context.Context, snap *schema.Snapshot) error {
	if !slices.ContainsFunc(snap.Sets, func(set schema.SetRef) bool { return !set.Unproven.IsZero() }) {
		return nil
	}
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	s.proofs.learn(snap)
	group, inGroup := errgroup.WithContext(ctx)
	group.SetLimit(loadsAtOnce)
	for _, set := range snap.Sets {
		if !set.Unproven.IsZero() {
			group.Go(func() error { return s.proofs.load(inGroup, set.Prefix) })
		}
	}
	if err := group.Wait(); err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	return nil
}

// Proof implements store.Prover.
func (s *Store) Proof(ctx context.Context, snap *schema.Snapshot) (store.Proof, error) {
	if err := s.LearnProofs(ctx, snap); err != nil {
		return store.Proof{}, err
	}
	p := &s.proofs
	return store.ProofOf(snap, func(prefix schema.ObjectPrefix) (n schema.Unproven, _ error) {
		p.mu.RLock()
		defer p.mu.RUnlock()
		if set := p.sets[prefix]; set != nil {
			n = schema.Unproven{Blobs: int64(len(set.known)), Bytes: set.bytes}
		}
		return n, nil
	})
}

// ProofStats implements store.ProofCounter.
func (s *Store) ProofStats() store.ProofStats {
	p := &s.proofs
	p.mu.RLock()
	defer p.mu.RUnlock()
	st := p.stats
	st.Waiting = p.waiting
	return st
}

var (
	_ store.Prover       = (*Store)(nil)
	_ store.ProofCounter = (*Store)(nil)
)
