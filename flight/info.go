package flight

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/protobuf/types/known/timestamppb"

	"bowstring/fetch"
	"bowstring/fetch/store"
	"bowstring/flight/catalog"
	"bowstring/flight/policy"
	"bowstring/schema"
)

// infoHandler answers what says what data there is, and serves none.
type infoHandler struct{ *Server }

// planInfo is the JSON of a FlightInfo's app_metadata.
type planInfo struct {
	Plan     string `json:"plan"`
	Dataset  string `json:"dataset,omitempty"`  // left out of a mixture
	Snapshot int64  `json:"snapshot,omitempty"` // likewise
	Ranks    int64  `json:"ranks"`
	Steps    int64  `json:"steps"`            // of the epoch, the same for every rank
	Rows     int64  `json:"rows"`             // over all ranks; replicas count once; sequences with pack
	Dropped  int64  `json:"dropped"`          // rows that are selected but not served
	Padded   int64  `json:"padded"`           // rows served a second time
	Owners   string `json:"owners,omitempty"` // the layout, if ranks get the rows that their nodes own
	// DataRanks is how many ranks get different samples. It is omitted if all do.
	DataRanks int64 `json:"data_ranks,omitempty"`
	// Packing describes the packing of documents. It is omitted if rows are samples.
	Packing *fetch.Packing `json:"packing,omitempty"`
}

// listedInfo is planInfo with the tags of a listed dataset, or with the sources of a
// mixture.
type listedInfo struct {
	planInfo
	Tags    []store.Tag   `json:"tags,omitempty"`
	Sources []sourceShare `json:"sources,omitempty"`
}

// sourceShare is a source of a mixture, and its part of an epoch.
type sourceShare struct {
	source
	Samples int64 `json:"samples"` // that the source selects, once each
	Rows    int64 `json:"rows"`    // of the epoch
}

// rankInfo is the JSON of an endpoint's app_metadata.
type rankInfo struct {
	Rank  int64  `json:"rank"`
	Rows  int64  `json:"rows"`
	Steps int64  `json:"steps"`
	Node  string `json:"node,omitempty"` // the node of the rank, if the request assigns locally
}

// parseDescriptor reads a descriptor of type PATH or CMD as a request.
func parseDescriptor(d *flight.FlightDescriptor) (schema.Request, error) {
	switch d.GetType() {
	case flight.DescriptorPATH:
		return schema.RequestFromPath(d.GetPath())
	case flight.DescriptorCMD:
		return schema.ParseRequest(d.GetCmd())
	}
	return schema.Request{}, &schema.FieldError{Field: "descriptor.type", Got: d.GetType().String(),
		Want: "PATH or CMD"}
}

// GetFlightInfo resolves a request into one endpoint for each rank.
func (s infoHandler) GetFlightInfo(ctx context.Context, d *flight.FlightDescriptor) (*flight.FlightInfo, error) {
	req, err := parseDescriptor(d)
	if err != nil {
		return nil, err
	}
	return s.flightInfo(ctx, d, req)
}

// PollFlightInfo returns the result of GetFlightInfo as complete, so a client never has to
// poll again.
func (s infoHandler) PollFlightInfo(ctx context.Context, d *flight.FlightDescriptor) (*flight.PollInfo, error) {
	info, err := s.GetFlightInfo(ctx, d)
	if err != nil {
		return nil, err
	}
	progress := 1.0
	return &flight.PollInfo{Info: info, Progress: &progress, ExpirationTime: s.expiration()}, nil
}

// flightInfo resolves a request. It opens the job, because totals depend on the rows that
// exist for the caller.
func (s infoHandler) flightInfo(ctx context.Context, d *flight.FlightDescriptor,
	req schema.Request) (*flight.FlightInfo, error) {
	// Checked before anything is evaluated: the tickets of the job are at least as long.
	if err := s.checkAnswer(req); err != nil {
		return nil, err
	}
	cat := s.catalog(ctx)
	job, err := cat.Open(ctx, req, policy.Read)
	if err != nil {
		return nil, err
	}
	defer job.Close()
	if err := s.checkAnswer(job.Request()); err != nil {
		return nil, err
	}
	bytes, err := cat.TotalBytes(ctx, job)
	if err != nil {
		return nil, err
	}
	// The answer is in memory until it was sent and the call is over: once as a structure
	// and once as an encoded message.
	release, err := s.reserveAnswer(ctx, 2*answerBytes(job.Request()))
	if err != nil {
		return nil, fmt.Errorf("an answer with %d endpoints: %w", req.WorldSize(), err)
	}
	context.AfterFunc(ctx, release)
	return s.infoOf(ctx, d, job.Resolved(), bytes, nil)
}

// maxAnswerBytes bounds the answer of a GetFlightInfo. The default MaxEndpoints fits, with
// tickets of about 200 bytes.
const maxAnswerBytes = 24 << 20

// answerBytes estimates the size of the answer for a request. Every endpoint has a ticket
// and the figures of its rank.
func answerBytes(req schema.Request) int64 {
	about := 128 // rank, rows, steps, expiration time, and their structures in memory
	if req.Assign == schema.AssignLocal {
		about += maxLocations*64 + 128 // addresses of a usual length; the layout's name in the ticket
	}
	return req.WorldSize() * int64(len(schema.Ticket{Request: req}.Marshal())+about)
}

// checkAnswer returns schema.ErrLimit if the answer for a request would have too many
// endpoints or bytes. The message says what the client can do instead. One rank is always
// allowed.
func (s infoHandler) checkAnswer(req schema.Request) error {
	ranks := req.WorldSize()
	if ranks > int64(s.opts.MaxEndpoints) {
		return fmt.Errorf("%w: world.size is %d, MaxEndpoints is %d; a ticket for one rank can be written by hand",
			schema.ErrLimit, ranks, s.opts.MaxEndpoints)
	}
	if n := answerBytes(req); n > maxAnswerBytes && ranks > 1 {
		return fmt.Errorf("%w: %d tickets of %d bytes make an answer of %d bytes, at most %d are allowed; a ticket "+
			"is the request with a \"rank\", and may be written by hand; "+
			"a selection that is uploaded and named makes it shorter", schema.ErrLimit, ranks, n/ranks, n,
			maxAnswerBytes)
	}
	return nil
}

// infoOf returns the FlightInfo of a resolved request, with one endpoint for each rank.
// Many endpoints are made in pieces, and other tenants get turns between them.
func (s infoHandler) infoOf(ctx context.Context, d *flight.FlightDescriptor, o *fetch.Resolved, bytes int64,
	tags []store.Tag) (*flight.FlightInfo, error) {
	req, plan := o.Request, o.Plan
	// TotalBytes and TotalRecords are sums over all endpoints, as Flight defines them.
	// Replicas send the same rows several times.
	if bytes > 0 {
		bytes *= req.Replicas()
	}
	ranks := req.WorldSize()
	var different int64
	if req.Replicas() > 1 {
		different = req.DataRanks()
	}
	said := planInfo{
		Plan: o.ID, Dataset: req.Dataset, Snapshot: req.Snapshot, Ranks: ranks,
		Steps: plan.Steps(), Rows: plan.Sequences(), Dropped: plan.Dropped(), Padded: plan.Padded(),
		Owners: req.Owners, DataRanks: different, Packing: o.Packing(),
	}
	if said.Packing != nil {
		said.Dropped, said.Padded = said.Packing.Dropped, said.Packing.Padded
	}
	about, err := encodeJSON(listedInfo{said, tags, sharesOf(o)})
	if err != nil {
		return nil, err
	}
	info := &flight.FlightInfo{
		Schema:           flight.SerializeSchema(o.Projection.Schema, s.mem),
		FlightDescriptor: d,
		Endpoint:         make([]*flight.FlightEndpoint, ranks),
		TotalRecords:     plan.Sequences() * req.Replicas(), // of all endpoints, as Flight has it
		TotalBytes:       bytes,
		Ordered:          ranks == 1 && (req.Order == "" || req.Order == schema.OrderStrict),
		AppMetadata:      about,
	}
	expires := s.expiration()
	if ranks <= endpointsAtOnce {
		return info, endpoints(info, o, 0, ranks, expires)
	}
	for from := int64(0); from < ranks; from += endpointsAtOnce {
		err := s.turn(ctx, func() error {
			return endpoints(info, o, from, min(from+endpointsAtOnce, ranks), expires)
		})
		if err != nil {
			return nil, err
		}
	}
	return info, nil
}

// sharesOf returns the part of an epoch that each source of a mixture has, nil without a
// mixture.
func sharesOf(o *fetch.Resolved) []sourceShare {
	var list []sourceShare
	for i, s := range sourcesOf(&o.Request) {
		list = append(list, sourceShare{s, o.Samples(i), o.SourceRows(i)})
	}
	return list
}

// endpointsAtOnce is how many endpoints are made before other tenants get a turn.
const endpointsAtOnce = 1024

// endpoints fills in the endpoints of the ranks in [from, to).
func endpoints(info *flight.FlightInfo, o *fetch.Resolved, from, to int64, expires *timestamppb.Timestamp) error {
	for rank := from; rank < to; rank++ {
		data := o.Request.DataRank(int(rank))
		node, locations := locationsOf(o, data)
		share, err := encodeJSON(rankInfo{Rank: rank, Rows: o.Plan.RankRows(data), Steps: o.Plan.Steps(), Node: node})
		if err != nil {
			return err
		}
		ticket := schema.Ticket{Request: o.Request, Rank: int(rank)}
		info.Endpoint[rank] = &flight.FlightEndpoint{
			Location:       locations,
			Ticket:         &flight.Ticket{Ticket: ticket.Marshal()},
			ExpirationTime: expires,
			AppMetadata:    share,
		}
	}
	return nil
}

// maxLocations bounds the locations of an endpoint. More would lengthen the answer for
// every rank, and a client needs them only if this many nodes fail.
const maxLocations = 4

// locationsOf returns where a rank redeems its ticket: at its own node, and at the nodes
// that follow in the layout if that one is gone. Without a layout, or if nodes have no
// address, there is no location. The client then redeems the ticket on the connection on
// which it got it, under whatever name it knows this server.
func locationsOf(o *fetch.Resolved, rank int) (node string, locations []*flight.Location) {
	l := o.Layout()
	if l == nil {
		return "", nil
	}
	first := o.NodeOf(rank)
	for i := range l.Nodes() {
		if n := l.Node((first + i) % l.Nodes()); n.Address != "" && len(locations) < maxLocations {
			locations = append(locations, &flight.Location{Uri: n.Address})
		}
	}
	return l.Node(first).ID, locations
}

// expiration returns when endpoints that are made now expire. It is in whole microseconds,
// the resolution of Python's datetime.
func (s *Server) expiration() *timestamppb.Timestamp {
	return timestamppb.New(time.Now().Add(s.opts.EndpointTTL).Truncate(time.Microsecond))
}

// GetSchema returns the schema of a request's batches. It reads only the record of the
// snapshot, so it is cheap for a large dataset.
func (s infoHandler) GetSchema(ctx context.Context, d *flight.FlightDescriptor) (*flight.SchemaResult, error) {
	req, err := parseDescriptor(d)
	if err != nil {
		return nil, err
	}
	if req.Mixture != nil {
		columns, err := s.catalog(ctx).MixtureSchema(ctx, req)
		if err != nil {
			return nil, err
		}
		return &flight.SchemaResult{Schema: flight.SerializeSchema(columns, s.mem)}, nil
	}
	v, err := s.catalog(ctx).View(ctx, catalog.Ref{Dataset: req.Dataset, Snapshot: req.Snapshot, Tag: req.Tag}, policy.List)
	if err != nil {
		return nil, err
	}
	if err := v.HasSplit(req.Split); err != nil {
		return nil, err
	}
	columns, err := v.Schema(ctx, req)
	if err != nil {
		return nil, err
	}
	return &flight.SchemaResult{Schema: flight.SerializeSchema(columns, s.mem)}, nil
}

// parseFilter reads the JSON filter of ListFlights and of the actions list and tags. where
// names the field in errors. An empty filter matches every dataset.
func parseFilter(where string, b []byte) (f catalog.Filter, err error) {
	var said struct {
		Dataset string `json:"dataset"`
	}
	if len(b) > 0 {
		if err := schema.DecodeJSON(where, b, &said); err != nil {
			return f, err
		}
	}
	if f.Name, f.Wild = strings.CutSuffix(said.Dataset, "*"); f.Name == "" {
		f.Wild = true
		return f, nil
	}
	if f.Wild {
		return f, schema.CheckName("dataset", f.Name)
	}
	f.Name, f.Number, f.Tag, err = schema.ParseSnapshotName("dataset", said.Dataset)
	return f, err
}

// ListFlights sends a FlightInfo for each split of the newest snapshot of each dataset.
func (s infoHandler) ListFlights(c *flight.Criteria, stream flight.FlightService_ListFlightsServer) error {
	filter, err := parseFilter("criteria", c.GetExpression())
	if err != nil {
		return err
	}
	ctx := stream.Context()
	return s.catalog(ctx).Each(ctx, filter, func(d store.Dataset, v *catalog.View) error {
		paths := [][]string{}
		name := schema.FormatSnapshotName(d.Name, filter.Number, filter.Tag)
		for _, split := range v.Splits {
			paths = append(paths, []string{name, split.Name})
		}
		// A snapshot without visible splits is listed as a whole.
		if len(paths) == 0 {
			paths = append(paths, []string{name})
		}
		for _, path := range paths {
			info, err := s.listed(ctx, d, v, path)
			if err != nil {
				return err
			}
			if err := stream.Send(info); err != nil {
				return err
			}
		}
		return nil
	})
}

// listed describes one split for a listing. If the caller may see all rows, it uses only
// the record of the snapshot. The answer then has the size in bytes only if an earlier call
// has computed it.
func (s infoHandler) listed(ctx context.Context, d store.Dataset, v *catalog.View, path []string) (*flight.FlightInfo, error) {
	split := ""
	if len(path) == 2 {
		split = path[1]
	}
	o, bytes, err := v.ResolveSplit(ctx, split)
	if err != nil {
		return nil, err
	}
	return s.infoOf(ctx, &flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: path}, o, bytes, d.Tags)
}
