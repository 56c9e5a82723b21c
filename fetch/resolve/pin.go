package resolve

import (
	"context"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// Pin puts the number of a snapshot in the place of the tag by which a request names
// it, so that what is made of the request means the same after the tag has moved. A
// request without a tag is as it was. A schema.ErrNotFound says which tags there are.
func (rv *Resolver) Pin(ctx context.Context, req schema.Request) (schema.Request, error) {
	if req.Tag == "" {
		return req, nil
	}
	number, err := store.Tagged(ctx, rv.store, req.Dataset, req.Tag)
	if err != nil {
		return req, err
	}
	req.Snapshot, req.Tag = number, ""
	return req, nil
}
