package backup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"bowstring/fetch/store"
	"bowstring/fetch/store/tend"
	"bowstring/schema"
	"bowstring/spill/segment"
)

// Generation is a backup as of one time, to be read. It is a tend.Source. It is
// safe for concurrent use.
type Generation struct {
	dir     string
	catalog *catalog
	packs   []*pack
}

var (
	_ tend.Source           = (*Generation)(nil)
	_ store.SelectionLister = (*Generation)(nil)
	_ store.Numberer        = (*Generation)(nil)
)

// Open opens a generation of the backup in dir, the newest if number is 0.
func Open(dir string, number int64) (_ *Generation, err error) {
	list, err := List(dir)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%w: the backup in %s has no generation yet", schema.ErrNotFound, dir)
	}
	if number == 0 {
		number = list[len(list)-1]
	}
	if !slices.Contains(list, number) {
		return nil, fmt.Errorf("%w: the backup in %s has no generation %d; it has %v", schema.ErrNotFound, dir, number,
			list)
	}
	g := &Generation{dir: dir}
	if g.catalog, err = readCatalog(dir, number); err != nil {
		return nil, err
	}
	for _, name := range g.catalog.Packs {
		p, err := openPack(filepath.Join(dir, packsDir), name)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%w: %w", schema.ErrDataLoss, err), g.Close())
		}
		g.packs = append(g.packs, p)
	}
	return g, nil
}

// List lists the generations of the backup in dir by number.
func List(dir string) ([]int64, error) {
	if err := checkFormat(dir); err != nil {
		return nil, err
	}
	return generations(dir)
}

// Close closes the files. Blobs handed out stay valid.
func (g *Generation) Close() error {
	var err error
	for _, p := range g.packs {
		err = errors.Join(err, p.close())
	}
	return err
}

// About says what the generation is.
type About struct {
	Generation int64     `json:"generation"`
	Created    time.Time `json:"created"`
	Store      string    `json:"store"`
	Snapshots  []string  `json:"snapshots"`
	Selections int64     `json:"selections"`
	Blobs      int64     `json:"blobs"`
	Bytes      int64     `json:"bytes"`
	Packs      int64     `json:"packs"`
}

// About says what the generation is.
func (g *Generation) About() About {
	c := g.catalog
	a := About{
		Generation: c.Generation, Created: c.Created, Store: c.Store, Snapshots: []string{},
		Selections: int64(len(c.Selections)),
		Blobs:      c.Blobs, Bytes: c.Bytes, Packs: int64(len(c.Packs)),
	}
	for _, snap := range c.Snapshots {
		a.Snapshots = append(a.Snapshots, snapshotName(snap.Dataset, snap.Number))
	}
	return a
}

// Datasets implements tend.Source.
func (g *Generation) Datasets(context.Context) ([]store.Dataset, error) {
	var list []store.Dataset
	for _, snap := range g.catalog.Snapshots {
		if n := len(list); n == 0 || list[n-1].Name != snap.Dataset {
			list = append(list, store.Dataset{Name: snap.Dataset})
		}
		d := &list[len(list)-1]
		d.Snapshots = append(d.Snapshots, snap.Number)
	}
	for i := range list {
		list[i].Tags = g.numbering(list[i].Name).Tags
	}
	return list, nil
}

func (g *Generation) numbering(dataset string) tend.Numbering {
	for _, n := range g.catalog.Numbering {
		if n.Dataset == dataset {
			return n
		}
	}
	return tend.Numbering{}
}

// LastNumber implements store.Numberer. Of a backup that does not say, it is 0.
func (g *Generation) LastNumber(_ context.Context, dataset string) (int64, error) {
	return g.numbering(dataset).Last, nil
}

// Snapshot implements tend.Source.
func (g *Generation) Snapshot(ctx context.Context, dataset string, number int64) (*schema.Snapshot, error) {
	for _, snap := range slices.Backward(g.catalog.Snapshots) {
		if snap.Dataset == dataset && (number == 0 || snap.Number == number) {
			return snap, nil
		}
	}
	list, err := g.Datasets(ctx)
	if err != nil {
		return nil, err
	}
	return nil, store.NoSnapshot(list, dataset, number)
}

// Selections implements store.SelectionLister.
func (g *Generation) Selections(_ context.Context, dataset string) ([]*schema.Selection, error) {
	var list []*schema.Selection
	for _, sel := range g.catalog.Selections {
		if dataset == "" || sel.Dataset == dataset {
			list = append(list, sel)
		}
	}
	return list, nil
}

// Get implements tend.Source.
func (g *Generation) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	if ctx.Err() != nil {
		return schema.Blob{}, context.Cause(ctx)
	}
	for _, p := range slices.Backward(g.packs) {
		e, found, err := p.index.find(ref.Key)
		if err != nil {
			return schema.Blob{}, err
		}
		if !found {
			continue
		}
		if e.BlobRef != ref {
			return schema.Blob{}, fmt.Errorf("%w: the index of pack %s has blob %s with another size or checksum",
				schema.ErrDataLoss, p.name, ref.Key)
		}
		data, err := p.read(e)
		if err != nil {
			return schema.Blob{}, err
		}
		return schema.NewBlob(data, nil), nil
	}
	return schema.Blob{}, fmt.Errorf("%w: the backup in %s has no blob %s", schema.ErrNotFound, g.dir, ref.Key)
}

// Pruned is what Prune removed.
type Pruned struct {
	Generations []int64 `json:"generations"`
	Packs       int64   `json:"packs"`
	FreedBytes  int64   `json:"freed_bytes"`
}

// Prune leaves the newest generations, so many of them, and removes the others and
// the packs that none of those left names. A pack of which some blobs are needed
// stays whole.
func Prune(dir string, keep int) (p Pruned, err error) {
	p.Generations = []int64{}
	if keep < 1 {
		return p, fmt.Errorf("%w: a backup keeps one generation at least, not %d", schema.ErrInvalid, keep)
	}
	if err := checkFormat(dir); err != nil {
		return p, err
	}
	lock, err := lockDirectory(dir)
	if err != nil {
		return p, fmt.Errorf("prune: %w", err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	list, err := generations(dir)
	if err != nil {
		return p, err
	}
	needed := map[string]bool{}
	for _, n := range list[max(0, len(list)-keep):] {
		c, err := readCatalog(dir, n) // if one that stays cannot be read, nothing may go
		if err != nil {
			return p, fmt.Errorf("prune: %w", err)
		}
		for _, name := range c.Packs {
			needed[name] = true
		}
	}
	for _, n := range list[:max(0, len(list)-keep)] {
		if err := remove(filepath.Join(dir, generationsDir), generationName(n), catalogSuffix, sumSuffix); err != nil {
			return p, err
		}
		p.Generations = append(p.Generations, n)
	}
	return p, p.packs(dir, needed)
}

// packs removes those that are not needed.
func (p *Pruned) packs(dir string, needed map[string]bool) error {
	folder := filepath.Join(dir, packsDir)
	names, err := numbered(folder, indexSuffix)
	if err != nil {
		return err
	}
	for _, name := range names {
		if needed[name] {
			continue
		}
		st, err := os.Stat(filepath.Join(folder, name+tarSuffix))
		if err != nil {
			return err
		}
		// The index first: without it, a tar is what the next writer removes.
		if err := remove(folder, name, indexSuffix, tarSuffix); err != nil {
			return err
		}
		p.Packs++
		p.FreedBytes += st.Size()
	}
	return nil
}

// remove unlinks files of a folder, durably one after the other.
func remove(folder, name string, suffixes ...string) error {
	for _, suffix := range suffixes {
		if err := os.Remove(filepath.Join(folder, name+suffix)); err != nil {
			return err
		}
		if err := segment.SyncDir(folder); err != nil {
			return err
		}
	}
	return nil
}
