package flight

import (
	"context"
	"errors"

	"bowstring/flight/catalog"
	"bowstring/flight/policy"
	"bowstring/schema"
)

// tagInfo is the JSON of a tag.
type tagInfo struct {
	Dataset  string `json:"dataset"`
	Tag      string `json:"tag"`
	Snapshot int64  `json:"snapshot"`
}

// tag gives a snapshot a name.
func (s *Server) tag(ctx context.Context, b []byte, send func([]byte) error) error {
	var req struct {
		catalog.Ref
		Name string `json:"name"`
	}
	if err := body(b, &req); err != nil {
		return err
	}
	if err := req.Check(); err != nil {
		return err
	}
	if err := schema.CheckTag("name", req.Name); err != nil {
		return err
	}
	number, err := s.catalog(ctx).Tag(ctx, req.Ref, req.Name)
	if err != nil {
		return err
	}
	return sendJSON(send, tagInfo{req.Dataset, req.Name, number})
}

// untag removes a name.
func (s *Server) untag(ctx context.Context, b []byte, send func([]byte) error) error {
	var req struct {
		Dataset string `json:"dataset"`
		Name    string `json:"name"`
	}
	if err := body(b, &req); err != nil {
		return err
	}
	if err := schema.CheckName("dataset", req.Dataset); err != nil {
		return err
	}
	if err := schema.CheckTag("name", req.Name); err != nil {
		return err
	}
	number, err := s.catalog(ctx).Untag(ctx, req.Dataset, req.Name)
	if err != nil {
		return err
	}
	return sendJSON(send, tagInfo{req.Dataset, req.Name, number})
}

// tags lists the tags of the datasets that a filter matches.
func (s *Server) tags(ctx context.Context, b []byte, send func([]byte) error) error {
	filter, err := parseFilter("body", b)
	if err != nil {
		return err
	}
	cat := s.catalog(ctx)
	datasets, err := cat.Datasets(ctx)
	if err != nil {
		return err
	}
	for _, d := range datasets {
		if !filter.Match(d.Name) || len(d.Tags) == 0 {
			continue
		}
		// A rule that does not fit a dataset hides it.
		if _, err := cat.Exists(ctx, catalog.Ref{Dataset: d.Name}, policy.List); errors.Is(err, schema.ErrNotFound) {
			continue
		} else if err != nil {
			return err
		}
		for _, tag := range d.Tags {
			if filter.Tag != "" && filter.Tag != tag.Name || filter.Number != 0 && filter.Number != tag.Snapshot {
				continue
			}
			if err := sendJSON(send, tagInfo{d.Name, tag.Name, tag.Snapshot}); err != nil {
				return err
			}
		}
	}
	return nil
}
