package catalog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"

	"bowstring/fetch"
	"bowstring/fetch/resolve"
	"bowstring/fetch/store"
	"bowstring/flight/policy"
	"bowstring/schema"
)

// Source is the data of a server and the rules in force. The catalogs of all callers show
// parts of it. It is safe for concurrent use.
type Source struct {
	engine *fetch.Engine
	rules  *atomic.Pointer[policy.Rules] // nil permits everything to every caller
	log    *slog.Logger
	// mayRead returns an error if a tenant may not read the buckets that contain samples of
	// a snapshot. nil permits every tenant.
	mayRead func(ctx context.Context, tenant string, snap *schema.Snapshot) error
}

// New returns the source of an engine. rules holds the rules in force; nil permits
// everything to every caller.
func New(engine *fetch.Engine, rules *atomic.Pointer[policy.Rules], log *slog.Logger) *Source {
	return &Source{engine: engine, rules: rules, log: log}
}

// LimitBuckets lets tenants read data in buckets only if mayRead succeeds. It is called
// before the first call is served.
func (s *Source) LimitBuckets(mayRead func(ctx context.Context, tenant string, snap *schema.Snapshot) error) {
	s.mayRead = mayRead
}

// Call is the call that a catalog serves. It stores the latest decision about the call's
// rights, and records for audits what the call does.
type Call interface {
	// Note stores a decision about the rights of the call.
	Note(a Access)
	// Access returns the decision that Note has stored last.
	Access() Access
	// BeginRead records that the caller is about to get rows, or data about rows. If it
	// fails, nothing may be read.
	BeginRead(ctx context.Context) error
	// Record runs do, which changes data, and records it before and after. If the first
	// record fails, do does not run. If the second one fails, Record fails although do has
	// run.
	Record(ctx context.Context, c Change, do func(*Change) error) error
}

// Access is a decision about the rights of a call. A call that uses several datasets has
// that of the last one.
type Access struct {
	Dataset  string
	Snapshot int64
	Plan     string
	Group    string // the job: the same in the plans of all epochs
	Right    policy.Right
	Decision policy.Decision
	// Sources are those of a mixture. Dataset, Snapshot and Decision are empty then.
	Sources []SourceAccess
	Refused bool // the call was refused
	Early   bool // the job was opened early and its snapshot is not confirmed yet
}

// Catalog is the data that exists for one caller, in one call. It is safe for concurrent
// use. It keeps no state of its own: each method asks for the rules in force, so that a
// change of the rules takes effect within a call.
type Catalog struct {
	source *Source
	engine *fetch.Engine
	log    *slog.Logger
	caller fetch.Caller
	call   Call
}

// For returns the catalog for a caller. call receives the records of its reads and
// changes.
func (s *Source) For(caller fetch.Caller, call Call) *Catalog {
	return &Catalog{s, s.engine, s.log, caller, call}
}

// current returns the rules in force, nil if there are none. Callers do not keep the
// result.
func (s *Source) current() *policy.Rules {
	if s.rules == nil {
		return nil
	}
	return s.rules.Load()
}

// Ruled reports whether the server has rules.
func (s *Source) Ruled() bool { return s.current() != nil }

// PolicyCaller converts a caller to the type that rules and tenants are matched with:
// package policy does not depend on fetch.
func PolicyCaller(c fetch.Caller) policy.Caller {
	return policy.Caller{Principal: c.Principal, Groups: c.Groups}
}

// ErrRules is the cause of a stream that ended because changed rules grant it less, or
// something else, than when it began.
var ErrRules = fmt.Errorf("%w: the rules have changed what you may see of this dataset; ask for it again",
	schema.ErrUnavailable)

// Stands reports whether the rules in force still grant exactly what they granted when a
// call began. A refused call always stands: it has nothing to lose.
func (s *Source) Stands(caller fetch.Caller, a *Access) bool {
	if a.Refused {
		return true
	}
	for i := range a.Sources {
		if !s.current().Decide(PolicyCaller(caller), a.Sources[i].Dataset).Same(a.Sources[i].Decision) {
			return false
		}
	}
	return a.Dataset == "" || s.current().Decide(PolicyCaller(caller), a.Dataset).Same(a.Decision)
}

// decide returns the caller's rights on a dataset by the rules in force.
func (c *Catalog) decide(dataset string) policy.Decision {
	return c.source.current().Decide(PolicyCaller(c.caller), dataset)
}

// SeesAll reports whether the caller may see the work of all callers.
func (c *Catalog) SeesAll() bool {
	return c.source.current().Server(PolicyCaller(c.caller)).May(policy.Admin)
}

// MayAdmin returns schema.ErrDenied unless the caller has the right admin on the server.
// what names the operation in the message.
func (c *Catalog) MayAdmin(what string) error {
	if c.SeesAll() {
		return nil
	}
	return c.denied("", fmt.Errorf("%w: %s is for who has the right %q on all datasets", schema.ErrDenied, what,
		policy.Admin.String()))
}

// Knows returns a predicate for the calls that the caller may see and cancel: its
// own calls, calls whose datasets all grant it the right admin, and every call if it has
// that right on the server.
func (c *Catalog) Knows() func(principal string, a *Access) bool {
	rs, who := c.source.current(), PolicyCaller(c.caller)
	everything := rs.Server(who).May(policy.Admin)
	return func(principal string, a *Access) bool {
		if everything || principal == who.Principal {
			return true
		}
		names := a.Datasets()
		return len(names) > 0 && !slices.ContainsFunc(names, func(name string) bool {
			return !rs.Decide(who, name).May(policy.Admin)
		})
	}
}

// denied records that the rules refused a call, for the audit log, and returns the error.
func (c *Catalog) denied(dataset string, err error) error {
	if c.source.Ruled() {
		c.call.Note(Access{Dataset: dataset, Refused: true})
	}
	return err
}

// May fails unless the caller has a right on a dataset. For a dataset that it may not
// even see, the caller gets the error for a missing one, whether there is one or not;
// writing is the exception, because the dataset need not exist.
func (c *Catalog) May(ctx context.Context, dataset string, right policy.Right) error {
	_, err := c.may(ctx, dataset, right)
	return err
}

// may is May, with the decision. It refuses in two ways: a caller with the right list, or
// one that wants to write, learns that its rights do not suffice; any other gets the
// error for a missing dataset. The audit log has both.
func (c *Catalog) may(ctx context.Context, dataset string, right policy.Right) (policy.Decision, error) {
	// The name is checked first, so that the audit log has no unbounded text of a caller.
	if err := schema.CheckName("dataset", dataset); err != nil {
		return policy.Decision{}, err
	}
	d := c.decide(dataset)
	switch {
	case d.May(right):
		return d, nil
	case d.May(policy.List) || right&policy.Write != 0:
		return d, c.denied(dataset, fmt.Errorf("%w: what you may do with dataset %q: %s; this takes %s",
			schema.ErrDenied, dataset, d.Rights, right))
	}
	return d, c.denied(dataset, c.noDataset(ctx, dataset, 0))
}

// noDataset is the error for a dataset or snapshot that does not exist, or not for the
// caller. It suggests names that do exist for the caller. Datasets with hidden rows or
// columns are not suggested: their rule may not fit them, which hides them, and to find
// that out their rows would have to be read.
func (c *Catalog) noDataset(ctx context.Context, dataset string, number int64) error {
	list, err := c.Datasets(ctx)
	if err != nil {
		return err
	}
	named := slices.DeleteFunc(slices.Clone(list), func(d store.Dataset) bool {
		return (d.Name != dataset || number == 0) && c.decide(d.Name).Restriction != nil
	})
	if len(named) == 0 && c.source.Ruled() {
		return fmt.Errorf("%w: there is no dataset %q; listings name those that there are for you", schema.ErrNotFound,
			dataset)
	}
	return store.NoSnapshot(named, dataset, number)
}

// Datasets lists the datasets that exist for the caller. The caller of Datasets must not
// change the tags and snapshots of the entries: they are the store's.
func (c *Catalog) Datasets(ctx context.Context) ([]store.Dataset, error) {
	all, err := c.engine.Store().Datasets(ctx)
	if err != nil || !c.source.Ruled() {
		return all, err
	}
	return slices.DeleteFunc(slices.Clone(all), func(d store.Dataset) bool {
		return !c.decide(d.Name).May(policy.List)
	}), nil
}

// Dataset returns the catalog's entry of a dataset, an empty one if it does not exist for
// the caller.
func (c *Catalog) Dataset(ctx context.Context, dataset string) (store.Dataset, error) {
	list, err := c.Datasets(ctx)
	if err != nil {
		return store.Dataset{}, err
	}
	found := store.Dataset{Name: dataset, Snapshots: []int64{}}
	for _, d := range list {
		if d.Name == dataset {
			found.Snapshots, found.Tags = d.Snapshots, d.Tags
		}
	}
	found.Tags = append([]store.Tag{}, found.Tags...) // JSON must have a list, not null
	return found, nil
}

// Existing returns a predicate for the datasets that exist for the caller. It reads the
// catalog once, and then only snapshots of datasets that are partly hidden. The predicate
// remembers its answers and is for one goroutine.
func (c *Catalog) Existing(ctx context.Context) (func(dataset string) (bool, error), error) {
	list, err := c.Datasets(ctx)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	whole := make(map[string]bool, len(list))
	for _, d := range list {
		whole[d.Name] = len(d.Snapshots) > 0
	}
	return func(dataset string) (bool, error) {
		is, ok := known[dataset]
		if ok {
			return is, nil
		}
		if is = whole[dataset]; is && c.decide(dataset).Restriction != nil {
			_, err := c.Exists(ctx, Ref{Dataset: dataset}, policy.List)
			if is = err == nil; ctx.Err() != nil {
				return false, context.Cause(ctx)
			}
		}
		known[dataset] = is
		return is, nil
	}, nil
}

// Ref names a dataset, or one of its snapshots by number or tag. It is part of the bodies
// of actions.
type Ref struct {
	Dataset  string `json:"dataset"`
	Snapshot int64  `json:"snapshot"`
	Tag      string `json:"tag" text:"snapshot"`
}

// Request returns a request for all rows and columns of the reference.
func (r Ref) Request() schema.Request {
	return schema.Request{Dataset: r.Dataset, Snapshot: r.Snapshot, Tag: r.Tag}
}

// Check fails if no snapshot can have these names.
func (r Ref) Check() error { return r.Request().Check() }

// Snapshot returns a snapshot on which the caller has a right, by number or by tag; the
// newest one if the reference has neither. It records the access, and it begins a read.
func (c *Catalog) Snapshot(ctx context.Context, ref Ref, right policy.Right) (*schema.Snapshot, error) {
	snap, _, err := c.snapshot(ctx, ref, right)
	return snap, err
}

// snapshot is Snapshot, with the decision. The rights are checked before the snapshot is
// read. A failure of the catalog is reported only as far as the caller may know of the
// dataset: see notFor.
func (c *Catalog) snapshot(ctx context.Context, ref Ref, right policy.Right) (*schema.Snapshot, policy.Decision, error) {
	dataset := ref.Dataset
	d, err := c.may(ctx, dataset, right)
	if err != nil {
		return nil, d, err
	}
	req, err := c.engine.Pin(ctx, ref.Request())
	if err != nil {
		return nil, d, c.notFor(ctx, d, dataset, 0, err)
	}
	snap, err := c.engine.Store().Snapshot(ctx, dataset, req.Snapshot)
	if err != nil {
		return nil, d, c.notFor(ctx, d, dataset, req.Snapshot, err)
	}
	if err := c.fits(ctx, d, snap); err != nil {
		return nil, d, err
	}
	c.call.Note(Access{Dataset: dataset, Snapshot: snap.Number, Right: right, Decision: d})
	return snap, d, c.call.BeginRead(ctx)
}

// Exists is Snapshot, and also fails if the rule's filter does not fit the snapshot. It
// opens a job for that if the rule hides rows, which is more expensive than Snapshot.
func (c *Catalog) Exists(ctx context.Context, ref Ref, right policy.Right) (*schema.Snapshot, error) {
	snap, d, err := c.snapshot(ctx, ref, right)
	if err == nil {
		err = c.shows(ctx, d, snap)
	}
	return snap, err
}

// fits fails if the rule shows no column of a snapshot. The caller then sees no dataset,
// and the log names the rule for the operator.
func (c *Catalog) fits(ctx context.Context, d policy.Decision, snap *schema.Snapshot) error {
	if d.Restriction.Visible(snap.Schema).NumFields() > 0 {
		return nil
	}
	c.log.LogAttrs(ctx, slog.LevelWarn, "a rule shows no column of a snapshot", slog.String("dataset", snap.Dataset),
		slog.Int64("snapshot", snap.Number), slog.String("rule", d.Rule.String()))
	return c.noDataset(ctx, snap.Dataset, 0)
}

// shows fails if the rule shows no column of a snapshot, or if its filter cannot be
// evaluated on it.
func (c *Catalog) shows(ctx context.Context, d policy.Decision, snap *schema.Snapshot) error {
	if err := c.fits(ctx, d, snap); err != nil || !d.Restriction.HidesRows() {
		return err
	}
	job, err := c.engine.Open(ctx, within(d, snap, schema.PositionColumn))
	if err != nil {
		if c.misfit(ctx, d, err) {
			return c.noDataset(ctx, snap.Dataset, 0)
		}
		return err
	}
	job.Close()
	return nil
}

// within returns a request for one column of all rows that a decision shows. One column
// is enough to evaluate the filter.
func within(d policy.Decision, snap *schema.Snapshot, column string) schema.Request {
	return schema.Request{Dataset: snap.Dataset, Snapshot: snap.Number, Columns: []string{column}, Within: d.Restriction}
}

// misfit reports whether err says that a rule does not fit a dataset. Only the operator's
// log has that error: to the caller it would reveal the rule.
func (c *Catalog) misfit(ctx context.Context, d policy.Decision, err error) bool {
	fault, ok := errors.AsType[*resolve.RestrictionError](err)
	if ok {
		c.log.LogAttrs(ctx, slog.LevelWarn, "a rule does not fit a dataset, which does not exist for those "+
			"whom it is for",
			slog.String("rule", d.Rule.String()), slog.String("error", fault.Error()))
	}
	return ok
}

// notFor returns the error that the caller gets if an operation failed to which it has a
// right. The original error may reveal too much: errors of the store name all datasets, and
// some errors quote the rule. If the rule does not fit the dataset, the answer is always
// that there is no such dataset.
func (c *Catalog) notFor(ctx context.Context, d policy.Decision, dataset string, number int64, err error) error {
	if d.Rule == nil {
		return err
	}
	if c.misfit(ctx, d, err) {
		return c.noDataset(ctx, dataset, 0)
	}
	missing := errors.Is(err, schema.ErrNotFound)
	if !missing && d.Restriction == nil {
		return err
	}
	// The snapshot decides whether err is about the dataset or about a part of it, such as
	// a split.
	snap, gone := c.engine.Store().Snapshot(ctx, dataset, number)
	if !errors.Is(gone, schema.ErrNotFound) {
		// The missing thing may also be a split or a selection.
		return c.unless(ctx, d, snap, gone, err)
	}
	if !missing {
		return err
	}
	if number != 0 && d.Restriction != nil { // a caller learns of other snapshots only if the dataset exists for it
		newest, gone := c.engine.Store().Snapshot(ctx, dataset, 0)
		if !errors.Is(gone, schema.ErrNotFound) {
			return c.unless(ctx, d, newest, gone, c.noDataset(ctx, dataset, number))
		}
	}
	return c.noDataset(ctx, dataset, number)
}

// unless returns err. If the snapshot does not exist for the caller, or could not be
// checked, it returns that error instead.
func (c *Catalog) unless(ctx context.Context, d policy.Decision, snap *schema.Snapshot, looking, err error) error {
	if looking == nil && d.Restriction != nil {
		looking = c.shows(ctx, d, snap)
	}
	if looking != nil {
		return looking
	}
	return err
}
