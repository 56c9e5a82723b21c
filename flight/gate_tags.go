package flight

import (
	"context"

	"bowstring/fetch/store"
	"bowstring/flight/policy"
)

// giveTag names a snapshot, which takes the right to write its dataset, and returns its
// number.
func (s *Server) giveTag(ctx context.Context, ref snapshotRef, name string) (int64, error) {
	if _, err := s.may(ctx, ref.Dataset, policy.Write); err != nil {
		return 0, err
	}
	tagger, err := store.TaggerOf(s.engine.Store())
	if err != nil {
		return 0, err
	}
	snap, _, err := s.snapshot(ctx, ref, policy.Write)
	if err != nil {
		return 0, err
	}
	return snap.Number, s.audited(ctx, change{event: auditTag, dataset: ref.Dataset, snapshot: snap.Number, tag: name},
		func(*change) error {
			return tagger.Tag(ctx, ref.Dataset, name, snap.Number)
		})
}

// removeTag removes a name from the snapshot that has it, whose number it returns.
func (s *Server) removeTag(ctx context.Context, dataset, name string) (int64, error) {
	d, err := s.may(ctx, dataset, policy.Write)
	if err != nil {
		return 0, err
	}
	tagger, err := store.TaggerOf(s.engine.Store())
	if err != nil {
		return 0, err
	}
	number, err := tagger.Tagged(ctx, dataset, name)
	if err != nil {
		return 0, s.notFor(ctx, d, dataset, 0, err)
	}
	return number, s.audited(ctx, change{event: auditUntag, dataset: dataset, snapshot: number, tag: name},
		func(*change) error {
			return tagger.Untag(ctx, dataset, name)
		})
}
