package cql

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gocql/gocql"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// known are the ids of the snapshot that is appended to, 16 bytes each, and which of
// them the scan came across. An id in two rows of a snapshot would make each
// sample two.
type known struct {
	ids   []schema.ID // sorted
	named []string    // the first few that were met
	met   int64
}

// knownNamed is how many ids an error names.
const knownNamed = 5

// read takes in the ids of a snapshot, page by page.
func (k *known) read(ctx context.Context, s *Store, snap *schema.Snapshot) error {
	k.ids = make([]schema.ID, 0, snap.Rows())
	err := store.EachPage(ctx, snap, snap.Chunks, s.get, func(_ schema.Chunk, m *schema.Manifest) error {
		for pos := range m.Rows() {
			k.ids = append(k.ids, m.ID(pos))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the manifest of %s@%d: %w", snap.Dataset, snap.Number, err)
	}
	slices.SortFunc(k.ids, compareIDs)
	return nil
}

// has says whether an id is known, and takes note of it.
func (k *known) has(id schema.ID) bool {
	if _, found := slices.BinarySearchFunc(k.ids, id, compareIDs); !found {
		return false
	}
	if k.met++; k.met <= knownNamed {
		k.named = append(k.named, gocql.UUID(id).String())
	}
	return true
}

// err names the ids that were met.
func (k *known) err(snap *schema.Snapshot) error {
	if k.met == 0 {
		return nil
	}
	list := strings.Join(k.named, ", ")
	if more := k.met - int64(len(k.named)); more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Errorf("%w: %d of the ids are in %s@%d already: %s; skip those that exist, or replace the snapshot",
		schema.ErrInvalid, k.met, snap.Dataset, snap.Number, list)
}

func compareIDs(a, b schema.ID) int { return bytes.Compare(a[:], b[:]) }
