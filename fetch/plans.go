package fetch

import (
	"context"

	"bowstring/fetch/jobs"
	"bowstring/schema"
)

// Outline is what a request means as far as its snapshot's record tells: see
// [jobs.Outline].
type Outline = jobs.Outline

// PlanID is what Job.ID would be of a request: see [jobs.Jobs.ID].
func (e *Engine) PlanID(ctx context.Context, req schema.Request) (string, error) {
	return e.snapshots.ID(ctx, req)
}

// Outline resolves a request without opening a manifest: see [jobs.Jobs.Outline].
func (e *Engine) Outline(snap *schema.Snapshot, req schema.Request) (*Outline, error) {
	return e.snapshots.Outline(snap, req)
}

// KnownBytes is what TotalBytes would be of an outline, if that is known: see
// [jobs.Jobs.KnownBytes].
func (e *Engine) KnownBytes(o *Outline) (int64, bool) { return e.snapshots.KnownBytes(o) }
