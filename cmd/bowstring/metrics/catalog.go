package metrics

import (
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// prefix is what the names of all metrics of Bowstring's own begin with.
const prefix = "bowstring_"

// metric is the definition of a metric that is made from counters during a scrape. It is
// immutable, and lives as long as the process.
type metric struct {
	name   string
	kind   prometheus.ValueType
	labels []string
	help   string
	desc   *prometheus.Desc
}

// Metric describes a metric for the documentation. Kind is gauge, counter or histogram.
type Metric struct {
	Name, Kind string
	Labels     []string
	Help       string
}

// all lists the metrics in the order in which they are documented. Only the
// initialization of this package appends to it, so that it needs no lock.
var all []*metric

// define registers a metric under its full name. It builds the Desc once, because NewDesc
// validates and hashes the labels at each call.
func define(kind prometheus.ValueType, name, help string, labels ...string) *metric {
	m := &metric{name: prefix + name, kind: kind, labels: labels, help: help}
	m.desc = prometheus.NewDesc(m.name, help, labels, nil)
	all = append(all, m)
	return m
}

func gauge(name, help string, labels ...string) *metric {
	return define(prometheus.GaugeValue, name, help, labels...)
}

func counter(name, help string, labels ...string) *metric {
	return define(prometheus.CounterValue, name, help, labels...)
}

// histogram defines a histogram. Its kind is UntypedValue, because the values come from
// elsewhere and client_golang has no ValueType for histograms.
func histogram(name, help string, labels ...string) *metric {
	return define(prometheus.UntypedValue, name, help, labels...)
}

// Catalog describes all metrics that Bowstring itself defines, in the order of the
// documentation. The metrics of the Go runtime and of the process are not among them.
func Catalog() []Metric {
	kinds := map[prometheus.ValueType]string{prometheus.GaugeValue: "gauge", prometheus.CounterValue: "counter",
		prometheus.UntypedValue: "histogram"}
	list := make([]Metric, len(all))
	for i, m := range all {
		list[i] = Metric{m.name, kinds[m.kind], m.labels, m.help}
	}
	return list
}

// Markdown returns the catalog as a table of the documentation. A test compares the
// documentation with it.
func Markdown() string {
	var b strings.Builder
	b.WriteString("| metric | labels | |\n|---|---|---|\n")
	for _, m := range Catalog() {
		help := m.Help
		if m.Kind == "histogram" {
			help += " (histogram)"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", m.Name, strings.Join(m.Labels, ", "), help)
	}
	return b.String()
}

// The counters of a server, its engine, its spill and its store.
// The names are an interface: dashboards, rules and the documentation use them. Units are
// in the names, in base units, as Prometheus recommends.
var (
	buildInfo     = gauge("build_info", "1; the labels say what was built.", "version", "go_version")
	draining      = gauge("draining", "1 while the server takes no new calls and waits for streams to end, else 0.")
	streamsNow    = gauge("streams", "Streams that run.", "kind")
	streamsLimit  = gauge("streams_limit", "Streams that may run at once.")
	streamsTotal  = counter("streams_total", "Streams begun.")
	streamSeconds = counter("stream_seconds_total", "Time that DoGet and DoExchange have run, summed up over them.")
	callsTotal    = counter("calls_total", "Calls begun, of any method.")
	rowsTotal     = counter("rows_total", "Rows sent or received.")
	bytesTotal    = counter("bytes_total", "Bytes of record batches sent or received.")
	waitSeconds   = counter("wait_seconds_total", "Where the time of batches went: `store`, `spill` and `peer` are "+
		"waits for reads, `operators` for samples being made, `encode` is work, `consumer` is network and client; `window` is the time in which reading waited because the window was full: the consumer is slower.", "source")
	faultsTotal = counter("faults_total", "Samples that could not be read, in streams that continued because of their on_error.")
	callSeconds = histogram("call_seconds", "Time from the beginning of a call to its end, streams included.", "method",
		"code")
	firstBatch = histogram("first_batch_seconds", "Time from the beginning of a stream to its first batch sent.")

	tenantStreams = gauge("tenant_streams", "Streams that run, by tenant; 64 tenants by name, all others "+
		"as `other`.", "tenant")
	tenantRows   = counter("tenant_rows_total", "Rows sent or received, by tenant.", "tenant")
	tenantBytes  = counter("tenant_bytes_total", "Bytes sent or received, by tenant.", "tenant")
	tenantStored = counter("tenant_store_bytes_total",
		"Bytes of blobs read from the store for its streams, by tenant.", "tenant")
	tenantMade = counter("tenant_operator_seconds_total",
		"CPU time of operators for its streams, by tenant.", "tenant")
	tenantSeconds = counter("tenant_stream_seconds_total",
		"Time that streams have run, summed up over them, by tenant.", "tenant")
	tenantRefused = counter("tenant_refused_total", "Streams refused as the tenant had as many as it may, by tenant.",
		"tenant")

	cellsMade     = counter("operator_cells_total", "Cells that operators made, or failed to make.")
	cellsFaulty   = counter("operator_faults_total", "Cells that operators failed to make.")
	programPanics = counter("operator_panics_total", "Cells at which a program of operators panicked.")
	makingSeconds = counter("operator_seconds_total", "CPU time of operators.")
	makingQueued  = counter("operator_queued_seconds_total",
		"Time that cells waited for operators, summed up over them.")
	prefixesKept = counter("operator_prefixes_kept_total",
		"Results of the first steps of lists that draw later, offered to the spill.")
	prefixesFound = counter("operator_prefixes_found_total", "Such results that were found in the spill, and not made again.")
	prefixTrials  = counter("operator_prefix_trials_total",
		"Cells that were made both directly and from such a result, to find the cheaper way.")
	makingNow     = gauge("operator_cells", "Cells being made, and those that wait for their turn.", "state")
	makingWorkers = gauge("operator_workers", "Cells that may be made at once.")

	ringsNow     = gauge("shm_rings", "Rings of shared memory that clients on this node have.")
	ringBytes    = gauge("shm_bytes", "Bytes that rings take, until the kernel has the memory back.")
	ringKept     = gauge("shm_kept_bytes", "Bytes of ended rings that a process still has open or mapped.")
	ringHeld     = gauge("shm_held_bytes", "Bytes of rings in slots that clients have, or are about to have.")
	ringsGiven   = counter("shm_rings_total", "Rings given to clients.")
	ringsRefused = counter("shm_refused_total", "Clients on this node that got no ring.")
	ringSent     = counter("shm_sent_bytes_total", "Bytes that went by rings.")
	ringWaits    = counter("shm_waits_total", "Batches that waited for room in a ring.")
	ringsLapsed  = counter("shm_abandoned_total", "Rings that were abandoned, as their clients said nothing "+
		"while a batch waited for room.")
	ringPinned   = gauge("shm_pinned_bytes", "Bytes of blobs that clients on this node read in place.")
	ringReferred = counter("shm_referred_bytes_total", "Bytes that clients got by reference, without a copy.")
	ringCopied   = counter("shm_copied_total", "Batches that were copied to a ring, as too much was pinned, or as the client could not be handed a file.")

	ringInline = counter("shm_inline_total", "Batches that went by TCP as their ring had no room.")

	readSeconds = histogram("read_seconds", "Time of reads that brought the right blob, by tier.", "tier")
	readReasons = counter("store_reads_total", "Blobs read from the store, by why: `own`, `peer` (for another "+
		"node), `ahead` (prefetch), `page` (of a manifest) are this node's to read; `astray` (for another node that takes this one for the owner), `unreachable`, `refused` are another's; `hedge` and `retry` are additional attempts.", "reason")
	readBytes   = counter("read_bytes_total", "Bytes of blobs read, by tier; `peer` is other nodes.", "tier")
	sharedReads = counter("shared_reads_total", "Blobs that came with a read made for another stream, or from "+
		"its window.")
	rankGroupBytes = gauge("rank_group_bytes", "Bytes that are held for ranks of a mesh that get the batches other ranks got before "+
		"them.")
	rankGroupsBehind = counter("rank_groups_behind_total", "Times that such a rank was so far behind that it reads again "+
		"what the others had.")
	failedReads = counter("failed_reads_total", "Attempts at the store that brought no blob, or a wrong one.")
	retries     = counter("retries_total", "Attempts at the store after one that failed or was silent for long.")
	hedges      = counter("hedges_total", "Attempts at the store in parallel with a slow one.")
	hedgesWon   = counter("hedges_won_total", "Hedges that brought the blob first.")
	failedBlobs = counter("given_up_reads_total", "Blobs that no attempt brought.")
	lost        = counter("lost_blobs_total", "Blobs that no attempt brought, as they are missing or damaged "+
		"in the store.")
	spanRequests   = counter("span_requests_total", "Requests to buckets that were made for several blobs.")
	spanBytes      = counter("span_bytes_total", "Bytes that these requests read.")
	spanBlobs      = counter("span_blobs_total", "Blobs that came with them: `wanted` by a stream, or `beside` for the spill.", "why")
	spanSingles    = counter("span_singles_total", "Blobs in buckets that were read by a request of their own.")
	spanMemory     = gauge("span_memory_bytes", "Memory of spans that are read, kept or held.")
	proofsLearned  = counter("proofs_learned_total", "Checksums from first reads of blobs that were attached without being read.")
	proofsCompared = counter("proofs_compared_total", "Reads that were compared with a checksum that was learned before.")
	proofsWrong    = counter("proofs_wrong_total", "Blobs that had another content than when they were first read.")
	proofsWaiting  = gauge("proofs_waiting", "Checksums that were learned and are not kept in the store yet.")
	fills          = counter("fills_total", "Blobs read for the spill alone, before a stream wanted them.")
	readsInFlight  = gauge("reads_in_flight", "Reads of the store under way.")
	bytesInFlight  = gauge("in_flight_bytes", "Bytes of reads of the store under way.")
	inFlightLimit  = gauge("in_flight_limit_bytes", "Bytes that may be under way, as the path was measured.")
	pathLatency    = gauge("store_least_latency_seconds", "Least recent latency of the store.")
	pathRate       = gauge("store_path_bytes_per_second", "Bandwidth of the way to the store, as a moving average.")
	waitingRows    = gauge("ready_rows", "Rows that wait for their consumers.")
	streamsReading = gauge("reading_streams", "Streams that read blobs.")
	streamsWaiting = gauge("waiting_streams", "Streams whose consumers wait for a read in this moment.")
	snapshotsOpen  = gauge("open_snapshots", "Snapshots that are open.")
	memoryUsed     = gauge("memory_used_bytes", "Memory that requests take, by use.", "use")
	memoryLimit    = gauge("memory_limit_bytes", "Memory that requests may take, by use.", "use")
	memoryMost     = gauge("memory_peak_bytes", "Most memory that requests ever took, by use.", "use")
	memoryWaiting  = gauge("memory_waiting_requests", "Requests that wait for memory, by use.", "use")
	processLimit   = gauge("process_memory_limit_bytes", "Memory that the process may use, by its control group or "+
		"the machine.")

	spillBudget = gauge("spill_budget_bytes", "Bytes of the disk that the spill may hold now.")
	spillHeld   = gauge("spill_held_bytes", "Bytes of the disk that the spill holds, dead space and an allowance "+
		"for the index included.")
	spillAbroad = gauge("spill_elsewhere_bytes", "Bytes of blobs in the spill that cannot be evicted, as clients of an "+
		"earlier server on this node have their files still.")
	spillBlobs    = gauge("spill_blobs", "Blobs in the spill.")
	spillFiles    = gauge("spill_segments", "Files of the spill.")
	spillWritten  = counter("spill_written_bytes_total", "Bytes written to the spill, headers and padding included.")
	spillMoved    = counter("spill_moved_bytes_total", "Bytes rewritten to give back the space of others.")
	spillBypassed = counter("spill_bypassed_total", "Blobs not stored in the spill: others are worth more, or the "+
		"disk is full or failed.")
	spillErrors = counter("spill_errors_total", "Errors of the disk of the spill: `read`, `write`, "+
		"`damaged` (a wrong checksum), `disk_full` and `busy` (blobs not stored as there was no room, or no time).",
		"kind")
	spillUnnamed = counter("spill_unnamed_total", "Times that a snapshot got no number in the spill, as all 65,536 are "+
		"in use: its blobs are not stored there.")
	spillLost = gauge("spill_index_lost", "1 if the index could not be written: what is in the spill will not be "+
		"after a restart; else 0.")

	datasetBytes = gauge("spill_dataset_bytes", "Bytes of blobs in the spill; the 50 most recent snapshots by name, "+
		"all others as `other`.", "dataset")
	datasetHits    = counter("spill_hits_total", "Blobs found in the spill, by snapshot.", "dataset")
	datasetMisses  = counter("spill_misses_total", "Blobs wanted and not found in the spill, by snapshot.", "dataset")
	datasetStored  = counter("spill_stored_total", "Blobs stored in the spill, by snapshot.", "dataset")
	datasetEvicted = counter("spill_evicted_total", "Blobs evicted from the spill, by snapshot.", "dataset")

	jobsNow    = gauge("jobs", "Jobs that run.")
	jobStreams = gauge("job_streams", "Streams of a job; 100 jobs by name, all others as `other`.", "training_job",
		"dataset")
	jobEpoch    = gauge("job_epoch", "Epoch in which a job is.", "training_job", "dataset")
	jobProgress = gauge("job_progress_ratio", "Share of its epoch that a job has read.", "training_job", "dataset")
	jobLeft     = gauge("job_epoch_left_seconds", "Time that the rest of the epoch will take, at the recent speed.",
		"training_job", "dataset")
	jobReads = counter("job_reads_total", "Blobs of a job, by where they came from: another stream's window, the "+
		"spill, other nodes, the store.", "training_job", "dataset", "tier")
	jobBytes = counter("job_read_bytes_total", "Bytes of those.", "training_job", "dataset", "tier")

	clusterInfo = gauge("cluster_info", "1; the labels say which node of which cluster the server is, and the "+
		"view that it goes by: nodes with the same view agree who owns what.", "cluster", "node", "zone", "view")
	clusterMembers = gauge("cluster_members", "Nodes of the cluster that this one knows of, itself included.")
	clusterShare   = gauge("cluster_share_ratio", "Share of all keys that this node owns by its view, where "+
		"everything fits.")
	clusterRead   = gauge("cluster_view_timestamp_seconds", "When the leases of the nodes were last read.")
	clusterFailed = gauge("cluster_view_failed", "1 if they could not be read since, else 0.")
	peerLinks     = gauge("peer_links", "Ways to other nodes, by what they are: `up`, `down` (there is no "+
		"connection), `silent` (a node was asked and does not answer).", "state")
	peerInFlight = gauge("peer_reads_in_flight", "Blobs that other nodes are being asked for.")
	peerAsked    = counter("peer_asked_total", "Blobs that other nodes were asked for; `class` is `zone` for nodes "+
		"in the same zone, `far` for others.", "class")
	peerReads   = counter("peer_reads_total", "Of those, which came.", "class")
	peerBytes   = counter("peer_read_bytes_total", "Bytes of those: what came in from other nodes.", "class")
	peerRefused = counter("peer_refused_total", "Asks that failed: the store was read instead.", "class")
	sentReads   = counter("peer_sent_total", "Blobs that other nodes were sent.", "class")
	sentBytes   = counter("peer_sent_bytes_total", "Bytes of those: what went out to other nodes.", "class")
	sentRefused = counter("peer_sent_refused_total",
		"Asks of other nodes that could not be answered with a blob.", "class")
	fellBack = counter("stood_in_reads_total", "Blobs that other nodes own and that were read from the store, as "+
		"those could not be asked, refused, or were slow.")

	storeReads   = counter("store_blob_reads_total", "Blobs that the store was asked for and brought, whatever for.")
	storeBytes   = counter("store_blob_read_bytes_total", "Bytes of those.")
	storeWrites  = counter("store_blob_writes_total", "Blobs stored anew.")
	storeDedups  = counter("store_blob_dedups_total", "Blobs put that were there.")
	storeWritten = counter("store_written_bytes_total", "Bytes of blobs stored anew.")
	storeBlobs   = gauge("store_blobs", "Blobs in the store, as far as this process knows.")
	storeStored  = gauge("store_bytes", "Bytes of blobs in the store, as far as this process knows.")

	objectRequests = counter("object_requests_total", "Requests to buckets, by what they do: `get`, `head`, `list` (pages), "+
		"`put`, `delete`; 50 buckets by URL, all others as `other`.", "bucket", "kind")
	objectBytes     = counter("object_bytes_total", "Bytes of objects, `in` (read) and `out` (written).", "bucket", "direction")
	objectErrors    = counter("object_errors_total", "Requests to buckets that failed, refused ones included.", "bucket")
	objectThrottled = counter("object_throttled_total", "Requests that buckets refused as too many.", "bucket")
	objectCost      = counter("object_cost_dollars_total", "What the requests and their bytes cost by list prices.", "bucket")
	objectFirst     = histogram("object_first_byte_seconds", "Time until the first byte of an answer of a bucket.", "bucket")
	objectLimit     = gauge("object_limit_requests_per_second", "Requests a second that this server allows itself, for each "+
		"limit that it has learned, of `reads` and `writes`; an empty prefix is the whole bucket.", "bucket", "prefix", "class")
	objectWaiting = gauge("object_waiting_requests", "Requests that wait for their turn at a bucket.", "bucket")
	objectWaited  = counter("object_wait_seconds_total", "Time that requests waited for their turn, summed up over them.",
		"bucket")
	tenantRequests = counter("tenant_object_requests_total", "Requests to buckets, by tenant.", "tenant")
	tenantCost     = counter("tenant_object_cost_dollars_total", "What those and their bytes cost by list prices, by tenant.",
		"tenant")

	collectEvery = gauge("collection_interval_seconds", "How often this server is to collect garbage; 0 for never.")
	collectLast  = gauge("collection_last_success_timestamp_seconds",
		"When a collection of this server last came to its end; before the first, when this server began.")
	collections = counter("collections_total", "Collections of this server, by what became of them: `done`, "+
		"`failed`, or `elsewhere`, as another server was at it or the store was away.", "result")
	adminRefused = counter("admin_tokens_refused_total", "Requests of the admin listener refused for their token, by "+
		"reason: `wrong`, or `limited` where their address had sent too many wrong ones.", "reason")
	certificate = gauge("certificate_not_after_timestamp_seconds",
		"When a certificate that is presented to clients ends to be valid.", "listener")
	sourceUnread = gauge("source_unreadable", "1 while a file, or the keys of a provider, that says which callers come "+
		"in and what they may do cannot be read, else 0. What was read last holds for a grace time.", "source")
)
