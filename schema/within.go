package schema

import (
	"slices"
	"strings"
)

// Request is the request for all samples that a source of a mixture selects.
func (s *MixtureSource) Request() Request {
	return Request{Dataset: s.Dataset, Snapshot: s.Snapshot, Tag: s.Tag, Split: s.Split, Where: s.Where, Within: s.Within}
}

// WithLeaves is the mixture with other leaves, as many as Leaves lists.
func (m *Mixture) WithLeaves(leaves []MixtureSource) *Mixture {
	var put func([]MixtureSource) []MixtureSource
	put = func(sources []MixtureSource) []MixtureSource {
		sources = slices.Clone(sources)
		for i := range sources {
			if sources[i].Sources != nil {
				sources[i].Sources = put(sources[i].Sources)
			} else {
				sources[i], leaves = leaves[0], leaves[1:]
			}
		}
		return sources
	}
	other := *m
	other.Sources = put(m.Sources)
	return &other
}

// Sources are the sources of the request: the leaves of its mixture, or the dataset that
// it names itself.
func (r Request) Sources() []MixtureSource {
	if r.Mixture != nil {
		return r.Mixture.Leaves()
	}
	return []MixtureSource{{Dataset: r.Dataset, Snapshot: r.Snapshot, Tag: r.Tag, Split: r.Split, Where: r.Where,
		Within: r.Within}}
}

// Restricted reports whether the caller may not see everything that the request names.
func (r Request) Restricted() bool {
	return slices.ContainsFunc(r.Sources(), func(s MixtureSource) bool { return s.Within != nil })
}

// Names are the datasets of the request, joined by +.
func (r Request) Names() string {
	var names []string
	for _, s := range r.Sources() {
		names = append(names, s.Dataset)
	}
	return strings.Join(names, "+")
}

// WithinKey names the restrictions of the request, for a mixture those of each source.
// Different restrictions have different keys, and no restriction has "".
func (r Request) WithinKey() string {
	if r.Mixture == nil {
		return r.Within.Key()
	}
	var keys []string
	for _, s := range r.Sources() {
		keys = append(keys, s.Within.Key())
	}
	if all := strings.Join(keys, " "); strings.TrimSpace(all) != "" {
		return all
	}
	return ""
}
