package maintenance

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// Name is a dataset or one of its snapshots, by number or by tag.
type Name struct {
	Dataset string
	Number  int64 // 0 for none in particular
	Tag     string
}

// String returns the form that commands take: DATASET@NUMBER, or DATASET@TAG.
func (n Name) String() string {
	return schema.FormatSnapshotName(n.Dataset, n.Number, n.Tag)
}

// resolve finds the number of a name that has a tag.
func (n Name) resolve(ctx context.Context, src store.Store) (Name, error) {
	if n.Tag == "" {
		return n, nil
	}
	number, err := src.Tagged(ctx, n.Dataset, n.Tag)
	return Name{Dataset: n.Dataset, Number: number}, err
}

func nameOf(snap *schema.Snapshot) Name { return Name{Dataset: snap.Dataset, Number: snap.Number} }

// Snapshots reads the snapshots that names stand for, by dataset and number: all
// of a dataset where a name has no number, and all there are without names.
func Snapshots(ctx context.Context, src store.Store, names []Name) ([]*schema.Snapshot, error) {
	list, err := src.Datasets(ctx)
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		for _, d := range list {
			names = append(names, Name{Dataset: d.Name})
		}
	}
	var wanted []Name
	asked := map[Name]bool{}
	for _, name := range names {
		name, err := name.resolve(ctx, src)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(list, func(d store.Dataset) bool { return d.Name == name.Dataset })
		switch {
		case i < 0:
			return nil, store.NoSnapshot(list, name.Dataset, 0)
		case name.Number != 0:
			wanted, asked[name] = append(wanted, name), true
		default:
			for _, number := range list[i].Snapshots {
				wanted = append(wanted, Name{Dataset: name.Dataset, Number: number})
			}
		}
	}
	slices.SortFunc(wanted, func(a, b Name) int {
		if c := strings.Compare(a.Dataset, b.Dataset); c != 0 {
			return c
		}
		return int(a.Number - b.Number)
	})
	return readSnapshots(ctx, src, slices.Compact(wanted), asked)
}

// snapshotsAtOnce is how many records of snapshots are read at the same time: a store may be far away and
// have very many.
const snapshotsAtOnce = 32

// readSnapshots reads snapshots. A snapshot that is not asked for by its number may have
// been dropped since it was listed, and is left out.
func readSnapshots(ctx context.Context, src store.Store, wanted []Name, asked map[Name]bool) ([]*schema.Snapshot, error) {
	snaps := make([]*schema.Snapshot, len(wanted))
	readers, ctx := errgroup.WithContext(ctx)
	readers.SetLimit(snapshotsAtOnce)
	for i, name := range wanted {
		readers.Go(func() error {
			snap, err := src.Snapshot(ctx, name.Dataset, name.Number)
			if errors.Is(err, schema.ErrNotFound) && !asked[name] {
				return nil
			}
			snaps[i] = snap
			return err
		})
	}
	err := readers.Wait()
	return slices.DeleteFunc(snaps, func(snap *schema.Snapshot) bool { return snap == nil }), err
}

// Newest reads the newest snapshot of each dataset that is named without a number,
// and the snapshot with the number otherwise.
func Newest(ctx context.Context, src store.Store, names []Name) ([]*schema.Snapshot, error) {
	var exact []Name
	for _, name := range names {
		name, err := name.resolve(ctx, src)
		if err != nil {
			return nil, err
		}
		snap, err := src.Snapshot(ctx, name.Dataset, name.Number)
		if err != nil {
			return nil, err
		}
		exact = append(exact, nameOf(snap))
	}
	if len(exact) == 0 {
		return nil, nil
	}
	return Snapshots(ctx, src, exact)
}

// Selections lists the selections of the snapshots that have not expired.
func Selections(ctx context.Context, src store.Store, snaps []*schema.Snapshot) ([]*schema.Selection, error) {
	of := map[Name]bool{}
	var datasets []string
	for _, snap := range snaps {
		of[nameOf(snap)] = true
		datasets = append(datasets, snap.Dataset)
	}
	slices.Sort(datasets)
	var kept []*schema.Selection
	for _, dataset := range slices.Compact(datasets) {
		list, err := src.Selections(ctx, dataset)
		if err != nil {
			return nil, err
		}
		for _, sel := range list {
			if of[Name{Dataset: sel.Dataset, Number: sel.Snapshot}] && !sel.Expired(time.Now()) {
				kept = append(kept, sel)
			}
		}
	}
	slices.SortFunc(kept, func(a, b *schema.Selection) int {
		if c := strings.Compare(a.Dataset, b.Dataset); c != 0 {
			return c
		}
		return strings.Compare(a.Name(), b.Name())
	})
	return kept, nil
}

// Retries of reads while a store is out of reach: each try asks another replica.
const (
	readTries = 6
	readPause = 100 * time.Millisecond // before the second try, then twice as long each time
)

// get reads a blob, and tries again as long as that may help: an error of it says
// something of the blob if it is a schema.ErrNotFound or schema.ErrDataLoss, and
// of the store otherwise.
func get(ctx context.Context, src store.Store, ref schema.BlobRef) (schema.Blob, error) {
	for try := 0; ; try++ {
		b, err := src.Get(store.WithAttempt(ctx, store.AttemptFrom(ctx)+try), ref)
		if err == nil || lost(err) || errors.Is(err, schema.ErrInvalid) || ctx.Err() != nil || try == readTries-1 {
			return b, err
		}
		pause := time.NewTimer(readPause << try)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return schema.Blob{}, context.Cause(ctx)
		}
	}
}

// lost reports whether an error says that a blob is damaged or gone.
func lost(err error) bool {
	return errors.Is(err, schema.ErrDataLoss) || errors.Is(err, schema.ErrNotFound)
}

// check compares a blob with all that its reference says: size, checksum, and
// content hash, if the key is one. The error is a schema.ErrDataLoss.
func check(ref schema.BlobRef, data []byte, hashed bool) error {
	if hashed {
		return ref.CheckHash(data)
	}
	return ref.Check(data)
}

// hashedIn says which keys of a store are hashes of what they name.
func hashedIn(src store.Store) func(schema.Key) bool {
	if src.Traits().Segments {
		return func(schema.Key) bool { return false }
	}
	return func(key schema.Key) bool {
		_, address := src.Addressed(key)
		return !address
	}
}
