package maintenance

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/renameio/v2"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// VerifyOptions tunes Verify. The zero value checks as fast as it can, and repairs nothing.
type VerifyOptions struct {
	// Rate is how many bytes a second are read at most; 0 for no limit.
	Rate int64
	// Workers is how many blobs are read at once; 32 if 0.
	Workers int
	// EveryReplica makes Verify read each blob from each replica of the source. A damaged replica
	// shows only then: a single read may be answered by a whole one.
	EveryReplica bool
	// Resume is a file that holds the progress, so that a stopped verification continues where it
	// was. It is removed at the end. Empty for none.
	Resume string
	// Elsewhere are places to look for a whole copy of a damaged blob, in order,
	// after other replicas.
	Elsewhere []Place
	// Repair is the store into which whole copies of damaged blobs are written; nil repairs
	// nothing.
	Repair store.Store
	// Progress, if not nil, is called after each blob, never twice at once.
	Progress func(Verification)
}

// Place is another source of a damaged blob's bytes: a spill, a replica or another store. Its bytes
// are checked before they are used.
type Place struct {
	Name string // "the spill in /scratch"
	// Get is store.Store's Get.
	Get func(ctx context.Context, ref schema.BlobRef) (schema.Blob, error)
}

// Verification is what Verify has found so far.
type Verification struct {
	Snapshots []string `json:"snapshots"` // by name, DATASET@N
	Blobs     int64    `json:"blobs"`
	Bytes     int64    `json:"bytes"`
	// OfBytes is the most that there is to read: a blob that several rows share counts for each.
	OfBytes int64 `json:"of_bytes"`
	// Damaged are the blobs that were not what they should be, MostDamaged of them at most,
	// by key. Beyond is how many more there are.
	Damaged []Damage `json:"damaged"`
	Beyond  int64    `json:"damaged_beyond"`
	// Repaired is how many of all those are whole now.
	Repaired int64 `json:"repaired"`
	// Proof is how many of the blobs that were attached without checksums have one now; nil if there
	// are none such. Verify reads each of them, which gives it a checksum.
	Proof *store.Proof `json:"proof,omitempty"`
}

// MostDamaged is how many damaged blobs are listed.
const MostDamaged = 100_000

// Lasting is how many blobs are damaged and were not repaired.
func (v *Verification) Lasting() int64 { return int64(len(v.Damaged)) + v.Beyond - v.Repaired }

// Damage is a blob that is not what it should be.
type Damage struct {
	schema.BlobRef
	Problem string `json:"problem"`
	// Whole says where a whole copy is, if one was found.
	Whole string `json:"whole,omitempty"`
	// Repaired: it was put back, and reads well now.
	Repaired bool `json:"repaired"`
	// In is what refers to it.
	In []Occurrence `json:"in"`
}

// Occurrence is what of a snapshot refers to a damaged blob.
type Occurrence struct {
	Dataset  string `json:"dataset"`
	Snapshot int64  `json:"snapshot"`
	// One of "manifest", "selection NAME", "object set PREFIX", "checksums of object set
	// PREFIX" or "column NAME".
	What string `json:"what"`
	// Rows are positions, the first hundred, and Count is how many there are. For a
	// manifest chunk they are the first and the last.
	Rows  []int64 `json:"rows"`
	Count int64   `json:"count"`
}

// verifier is one run of Verify.
type verifier struct {
	scope   Scope
	opts    VerifyOptions
	pool    *pool
	pace    pace
	hashed  func(schema.Key) bool
	state   progressFile
	resumed bool
	saveErr error // why the state could not be saved

	mu     sync.Mutex
	report Verification        // guarded by mu while blobs are visited
	broken map[schema.Key]bool // damaged blobs that were not repaired; later lists skip chunks among them
}

// Verify reads every blob that the scope refers to, manifests and selections included,
// and compares it with its size, its checksum and its hash. Damaged blobs are reported
// and are no error; an error says that the source cannot be read.
func Verify(ctx context.Context, scope Scope, opts VerifyOptions) (Verification, error) {
	v := &verifier{
		scope: scope, opts: opts, pool: newPool(opts.Workers), hashed: hashedIn(scope.Source),
		broken: map[schema.Key]bool{},
	}
	v.pace = newPace(opts.Rate)
	err := v.run(ctx)
	slices.SortFunc(v.report.Damaged, func(a, b Damage) int { return strings.Compare(a.Key.String(), b.Key.String()) })
	if err != nil {
		return v.report, fmt.Errorf("verify: %w", err)
	}
	return v.report, nil
}

// run visits the blobs of all lists, then finds out what refers to the damaged ones, and counts
// checksums. It saves its state before each phase that may be stopped.
func (v *verifier) run(ctx context.Context) error {
	v.report.Snapshots, v.report.Damaged = []string{}, []Damage{}
	for _, snap := range v.scope.Snapshots {
		v.report.Snapshots = append(v.report.Snapshots, nameOf(snap).String())
	}
	passes := v.scope.Passes()
	if err := v.begin(passes); err != nil {
		return err
	}
	var err error
	if v.scope.Proofs, err = Proofs(ctx, v.scope.Source, v.scope.Snapshots); err != nil {
		return err
	}
	_, v.report.OfBytes = v.scope.Size()
	if err := v.lists(ctx, passes); err != nil {
		v.save(true)
		return err
	}
	v.save(true) // what comes now may be stopped, too
	if err := v.locate(ctx); err != nil {
		return err
	}
	if err := v.prove(ctx); err != nil {
		return err
	}
	return v.end()
}

// prove keeps the checksums that were learned, and says how many there are.
func (v *verifier) prove(ctx context.Context) error {
	if err := store.ProverOf(v.scope.Source).KeepProofs(ctx); err != nil {
		return err
	}
	switch proof, err := ProofOf(ctx, v.scope.Source, v.scope.Snapshots); {
	case lost(err): // what was learned is damaged, which is reported
		return nil
	case err != nil:
		return err
	case proof.OfBlobs > 0:
		v.report.Proof = &proof
	}
	return nil
}

// lists visits one list after the other, beginning at the saved one. Manifests come before the blobs
// that they name, so that a list is made only of chunks that can be read or were repaired.
func (v *verifier) lists(ctx context.Context, passes int) error {
	for list := v.state.List; list < lists(passes); list++ {
		refs, err := v.scope.list(ctx, list, passes, v.broken)
		if err != nil {
			return err
		}
		if list == lists(passes)-1 {
			v.state.Next = 0 // selections come and go
		}
		err = v.pool.each(ctx, refs, min(v.state.Next, len(refs)), v.visit, func(next int) {
			v.state.Next = next
			v.save(false)
		})
		if err != nil {
			return err
		}
		v.state.List, v.state.Next = list+1, 0
		if v.saveErr != nil {
			return fmt.Errorf("say in %s how far it is: %w", v.opts.Resume, v.saveErr)
		}
	}
	return nil
}

// visit checks one blob.
func (v *verifier) visit(ctx context.Context, ref schema.BlobRef) error {
	replicas := 1
	if v.opts.EveryReplica {
		replicas = v.scope.Source.Traits().Replicas
	}
	var problem error
	for n := range replicas {
		if err := v.pace.wait(ctx, ref.Size); err != nil {
			return err
		}
		bad, err := v.intact(store.WithAttempt(ctx, n), v.scope.Source, ref)
		if err != nil {
			return err
		}
		if bad != nil && replicas > 1 {
			bad = fmt.Errorf("replica %d: %w", n+1, bad)
		}
		problem = errors.Join(problem, bad)
	}
	var found *Damage
	if problem != nil {
		found = &Damage{BlobRef: ref, Problem: strings.ReplaceAll(problem.Error(), "\n", "; "), In: []Occurrence{}}
		if err := v.mend(ctx, found); err != nil {
			return err
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.report.Blobs++
	v.report.Bytes += ref.Size
	if found != nil {
		v.note(*found)
	}
	if v.opts.Progress != nil {
		v.opts.Progress(v.report)
	}
	return nil
}

// note adds a damaged blob to the report; the caller holds mu. After a restart a blob may be visited
// a second time: its old entry is replaced, so that it counts once.
func (v *verifier) note(d Damage) {
	if d.Repaired {
		v.report.Repaired++
	} else {
		v.broken[d.Key] = true
	}
	if i := slices.IndexFunc(v.report.Damaged, func(old Damage) bool { return old.Key == d.Key }); v.resumed && i >= 0 {
		if v.report.Damaged[i].Repaired {
			v.report.Repaired--
		}
		v.report.Damaged[i] = d // visited before it was stopped, and once more
	} else if len(v.report.Damaged) < MostDamaged {
		v.report.Damaged = append(v.report.Damaged, d)
	} else {
		v.report.Beyond++
	}
}

// intact reads a blob and returns what is wrong with it as problem; nil if it is whole. err is an
// error of the source, after which the state of the blob is unknown.
func (v *verifier) intact(ctx context.Context, src store.Store, ref schema.BlobRef) (problem, err error) {
	b, err := get(ctx, src, ref)
	switch {
	case err != nil && lost(err):
		return err, nil
	case err != nil:
		return nil, err
	}
	defer b.Release()
	if err = checkIn(ctx, src, ref, b.Bytes(), v.hashed(ref.Key)); err != nil && !lost(err) {
		return nil, err
	}
	return err, nil
}

// mend looks for a whole copy of a damaged blob, and repairs the blob with it if that is asked for.
// Replicas come first. A place without the blob, or one that cannot be read, is skipped.
func (v *verifier) mend(ctx context.Context, d *Damage) error {
	places := v.opts.Elsewhere
	if replicas := v.scope.Source.Traits().Replicas; replicas > 1 {
		var others []Place
		for n := range replicas {
			read := func(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
				return v.scope.Source.Get(store.WithAttempt(ctx, n), ref)
			}
			others = append(others, Place{fmt.Sprintf("replica %d", n+1), read})
		}
		places = append(others, places...)
	}
	for _, place := range places {
		b, err := place.Get(ctx, d.BlobRef)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			continue // it has none, or it cannot be read there: the next place
		}
		if check(d.BlobRef, b.Bytes(), v.hashed(d.Key)) != nil {
			b.Release()
			continue
		}
		d.Whole = place.Name
		err = v.repair(ctx, d, b.Bytes())
		b.Release()
		return err
	}
	return nil
}

// repair writes the bytes of a damaged blob and reads the blob again. If the store refuses the
// repair, the blob stays damaged and its problem says why: others can still be repaired.
func (v *verifier) repair(ctx context.Context, d *Damage, data []byte) error {
	if v.opts.Repair == nil {
		return nil
	}
	err := v.opts.Repair.Repair(ctx, d.BlobRef, data)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, schema.ErrInvalid):
		d.Problem += "; " + err.Error()
		return nil
	case err != nil:
		return err
	}
	problem, err := v.intact(ctx, v.scope.Source, d.BlobRef)
	if problem != nil {
		d.Problem += fmt.Sprintf("; after it was put back from %s: %s", d.Whole, problem)
	}
	d.Repaired = problem == nil && err == nil
	return err
}

// mostRows is how many positions an occurrence lists.
const mostRows = 100

// hit is a cell of a manifest chunk with a damaged blob.
type hit struct {
	column int
	row    int64
	damage int // index in Verification.Damaged
}

// locate finds out what refers to the damaged blobs. A blob without references, because
// its snapshots were dropped meanwhile, is not damage.
func (v *verifier) locate(ctx context.Context) error {
	if len(v.report.Damaged) == 0 {
		return nil
	}
	index := map[schema.Key]int{}
	for i, d := range v.report.Damaged {
		index[d.Key] = i
		v.report.Damaged[i].In = []Occurrence{}
	}
	hits := map[schema.Key][]hit{} // by chunk
	for _, snap := range v.scope.Snapshots {
		if _, err := v.scope.Source.Snapshot(ctx, snap.Dataset, snap.Number); errors.Is(err, schema.ErrNotFound) {
			continue
		} else if err != nil {
			return err
		}
		if err := v.locateIn(ctx, snap, index, hits); err != nil {
			return err
		}
	}
	gone := int64(0)
	v.report.Damaged = slices.DeleteFunc(v.report.Damaged, func(d Damage) bool {
		if len(d.In) == 0 && d.Repaired {
			gone++
		}
		return len(d.In) == 0
	})
	v.report.Repaired -= gone
	return nil
}

// locateIn finds the damaged blobs of one snapshot.
func (v *verifier) locateIn(
	ctx context.Context, snap *schema.Snapshot, index map[schema.Key]int, hits map[schema.Key][]hit,
) error {
	for _, sel := range v.scope.Selections {
		if i, ok := index[sel.Bitmap.Key]; ok && sel.Dataset == snap.Dataset && sel.Snapshot == snap.Number {
			v.occurs(i, snap, "selection "+sel.Name(), nil)
		}
	}
	for _, run := range v.scope.Proofs {
		if i, ok := index[run.Key]; ok && run.Dataset == snap.Dataset &&
			slices.ContainsFunc(snap.Sets, func(set schema.SetRef) bool { return set.Prefix == run.Prefix }) {
			v.occurs(i, snap, "checksums of object set "+run.Prefix.String(), nil)
		}
	}
	for _, set := range snap.Sets {
		if i, ok := index[set.Blob.Key]; ok {
			v.occurs(i, snap, "object set "+set.Prefix.String(), nil)
		}
	}
	columns := schema.BlobFields(snap.Schema)
	start := int64(0)
	for c := range snap.Chunks {
		chunk := chunkOf{snap, c}
		rows, key := chunk.chunk().Rows, chunk.chunk().Key
		if i, ok := index[key]; ok {
			v.occurs(i, snap, "manifest", []int64{start, start + rows - 1})
		}
		if chunk.chunk().Pages > 0 && !v.broken[key] {
			pages, err := v.scope.pages(ctx, chunk)
			if err != nil {
				return err
			}
			for _, p := range pages {
				if i, ok := index[p.page.Key]; ok {
					first := start + p.start
					v.occurs(i, snap, "manifest", []int64{first, first + p.page.Rows - 1})
				}
			}
		}
		found, known := hits[key]
		if !known && !v.broken[key] {
			err := v.scope.cells(ctx, chunk, v.broken, func(column int, row int64, ref schema.BlobRef) {
				if i, ok := index[ref.Key]; ok {
					found = append(found, hit{column, row, i})
				}
			})
			if err != nil {
				return err
			}
			hits[key] = found
		}
		for _, h := range found {
			v.occurs(h.damage, snap, fmt.Sprintf("column %s", columns[h.column].Name), []int64{start + h.row})
		}
		start += rows
	}
	return nil
}

// occurs adds rows to what refers to a damaged blob.
func (v *verifier) occurs(i int, snap *schema.Snapshot, what string, rows []int64) {
	d := &v.report.Damaged[i]
	n := len(d.In)
	same := func(o Occurrence) bool {
		return o.Dataset == snap.Dataset && o.Snapshot == snap.Number && o.What == what
	}
	at := slices.IndexFunc(d.In, same)
	if at < 0 {
		d.In = append(d.In, Occurrence{Dataset: snap.Dataset, Snapshot: snap.Number, What: what, Rows: []int64{}})
		at = n
	}
	o := &d.In[at]
	if what == "manifest" {
		o.Count += rows[1] - rows[0] + 1
	} else {
		o.Count += int64(len(rows))
	}
	o.Rows = append(o.Rows, rows[:min(len(rows), max(0, mostRows-len(o.Rows)))]...)
}

// progressFile is the file that says how far a verification is: JSON.
type progressFile struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	// Scope is a hash of what is verified, and Passes how it is divided.
	Scope  string `json:"scope"`
	Passes int    `json:"passes"`
	// All blobs of the lists before List are done, and the first Next of that one.
	List int `json:"list"`
	Next int `json:"next"`
	// Found is what was found in them.
	Found Verification `json:"found"`

	saved time.Time
}

const (
	progressFormat  = "bowstring-verify"
	progressVersion = 1

	// saveEvery is how often it is written at most.
	saveEvery = 5 * time.Second
)

// fingerprint names what is verified: every snapshot with its chunks.
func (s *Scope) fingerprint() string {
	h := sha256.New()
	for _, snap := range s.Snapshots {
		fmt.Fprintf(h, "snapshot %q %d\n", snap.Dataset, snap.Number)
		for i := range snap.Chunks {
			fmt.Fprintf(h, "%s\n", snap.Chunks[i].Key)
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// begin reads how far an earlier run came.
func (v *verifier) begin(passes int) error {
	scope := v.scope.fingerprint()
	v.state = progressFile{Format: progressFormat, Version: progressVersion, Scope: scope, Passes: passes}
	if v.opts.Resume == "" {
		return nil
	}
	old, err := readProgress(v.opts.Resume)
	if old == nil || err != nil {
		return err
	}
	if old.Scope != scope || old.Passes != passes {
		return fmt.Errorf("%w: %s is of %s, or was made with another limit of memory: "+
			"name the same snapshots, or remove it to begin anew",
			schema.ErrInvalid, v.opts.Resume, strings.Join(old.Found.Snapshots, ", "))
	}
	v.state, v.report, v.resumed = *old, old.Found, true
	for _, d := range old.Found.Damaged {
		if !d.Repaired {
			v.broken[d.Key] = true
		}
	}
	return nil
}

// Resumed reads which snapshots the verification of a file was of; none if there is no file.
func Resumed(path string) ([]Name, error) {
	old, err := readProgress(path)
	if old == nil || err != nil {
		return nil, err
	}
	var names []Name
	for _, s := range old.Found.Snapshots {
		dataset, number, _ := strings.Cut(s, "@")
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%w: %s names the snapshot %q: remove the file to begin anew", schema.ErrInvalid,
				path, s)
		}
		names = append(names, Name{Dataset: dataset, Number: n})
	}
	return names, nil
}

// readProgress reads a file, nil if there is none.
func readProgress(path string) (*progressFile, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	p, err := parseProgress(data)
	if err != nil {
		return nil, fmt.Errorf("%w: %s says of no verification how far it is (%w): name another file, or remove it",
			schema.ErrInvalid, path, err)
	}
	return p, nil
}

func parseProgress(data []byte) (*progressFile, error) {
	p := new(progressFile)
	if err := json.Unmarshal(data, p); err != nil {
		return nil, err
	}
	if p.Format != progressFormat || p.Version != progressVersion {
		return nil, fmt.Errorf("format %q, version %d", p.Format, p.Version)
	}
	if p.List < 0 || p.Next < 0 || p.Passes < 1 {
		return nil, fmt.Errorf("list %d of %d, blob %d", p.List, p.Passes, p.Next)
	}
	return p, nil
}

// save writes the progress to the state file now and then. After a restart, blobs visited
// since the last save are visited and counted once more.
func (v *verifier) save(now bool) {
	if v.opts.Resume == "" || !now && time.Since(v.state.saved) < saveEvery {
		return
	}
	v.mu.Lock()
	v.state.Found = v.report
	data, err := json.MarshalIndent(&v.state, "", "  ")
	v.mu.Unlock()
	if err == nil {
		err = renameio.WriteFile(v.opts.Resume, append(data, '\n'), 0o600)
	}
	v.state.saved = time.Now()
	v.saveErr = err
}

// end removes the file: the next run begins anew.
func (v *verifier) end() error {
	if v.opts.Resume == "" {
		return nil
	}
	if err := os.Remove(v.opts.Resume); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Mender puts back blobs that Verify found damaged, from where they come in an order
// of their own, such as the source of an import.
type Mender struct {
	v    *verifier
	want map[schema.Key]*Damage
	like map[content][]*Damage // those without a hash, which are known by their content
}

// content is the size and checksum of a blob without a hash.
type content struct {
	size int64
	sum  schema.Sum
}

// NewMender returns a Mender for what is damaged still.
func NewMender(scope Scope, to store.Store, found *Verification) *Mender {
	m := &Mender{
		v:    &verifier{scope: scope, opts: VerifyOptions{Repair: to}, hashed: hashedIn(scope.Source)},
		want: map[schema.Key]*Damage{}, like: map[content][]*Damage{},
	}
	for i := range found.Damaged {
		d := &found.Damaged[i]
		switch {
		case d.Repaired || d.Whole != "" || d.Unproven():
		case d.Hashed():
			m.want[d.Key] = d
		default:
			as := content{d.Size, d.Sum}
			m.like[as] = append(m.like[as], d)
		}
	}
	return m
}

// Wants is how many blobs are looked for still.
func (m *Mender) Wants() int { return len(m.want) + len(m.like) }

// From looks for what is wanted still among what the rows of another store's snapshots refer to: there blobs have other keys,
// and the same content. place says for people where it is.
func (m *Mender) From(ctx context.Context, place string, other Scope, found *Verification) error {
	passes := other.Passes()
	for n := 0; n < passes && m.Wants() > 0; n++ {
		refs, err := other.Pass(ctx, n, passes, nil)
		if err != nil {
			return err
		}
		for _, ref := range refs {
			if m.want[ref.Key] == nil && m.like[content{ref.Size, ref.Sum}] == nil || ref.Unproven() {
				continue
			}
			b, err := get(ctx, other.Source, ref)
			if lost(err) {
				continue // it is damaged there, too
			} else if err != nil {
				return err
			}
			err = m.Offer(ctx, place, b.Bytes(), found)
			b.Release()
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// Offer repairs the damaged blobs that have this content. It computes the key and the checksum itself. place names
// the source, for reports. With a nil Store of NewMender it notes only that there is a whole copy.
func (m *Mender) Offer(ctx context.Context, place string, data []byte, found *Verification) error {
	ref := schema.RefOf(data)
	as := content{ref.Size, ref.Sum}
	list := m.like[as]
	delete(m.like, as)
	if d := m.want[ref.Key]; d != nil && d.BlobRef == ref {
		delete(m.want, ref.Key)
		list = append(list, d)
	}
	for _, d := range list {
		d.Whole = place
		if err := m.v.repair(ctx, d, data); err != nil {
			return err
		}
		if d.Repaired {
			found.Repaired++
		}
	}
	return nil
}
