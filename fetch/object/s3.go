package object

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials/ec2rolecreds"

	"bowstring/schema"
)

const (
	emptySum = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	unsigned = "UNSIGNED-PAYLOAD"
	// refreshAhead is how long before their end credentials are renewed.
	refreshAhead = 5 * time.Minute
	// maxSkew is how wrong the machine's clock may be. What is more is no clock.
	maxSkew = 14 * 24 * time.Hour
)

// s3 is the dialect of S3 and of servers that are compatible with it.
type s3 struct {
	bucket   string
	url      string   // of the bucket, for errors
	endpoint *url.URL // nil: the cloud's, by region
	virtual  bool     // the bucket's name stands in the host's
	pays     []string // x-amz-request-payer, or nil
	keys     *awsKeys
	signer   *v4.Signer
	place    atomic.Pointer[s3Place]
	skew     atomic.Int64 // nanoseconds that the server's clock is ahead
}

// s3Place is where requests go to.
type s3Place struct {
	region string
	base   url.URL // of the bucket: scheme, host, and the path before "/" and the key
}

func openS3(ctx context.Context, a address, opts Options) (Bucket, error) {
	load := []func(*config.LoadOptions) error{
		config.WithCredentialsCacheOptions(func(o *aws.CredentialsCacheOptions) {
			o.ExpiryWindow, o.ExpiryWindowJitterFrac = refreshAhead, .5
		}),
	}
	if opts.Profile != "" {
		load = append(load, config.WithSharedConfigProfile(opts.Profile))
	}
	cfg, err := config.LoadDefaultConfig(ctx, load...)
	if err != nil {
		return nil, errorf(schema.ErrInvalid, "settings of AWS for %s: %v", a, err)
	}
	if opts.CAFile == "" {
		opts.CAFile = caBundle(cfg)
	}
	transport, err := newTransport(opts)
	if err != nil {
		return nil, err
	}
	d := &s3{bucket: a.name, signer: v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })}
	if d.endpoint = a.endpoint(); d.endpoint == nil {
		if d.endpoint, err = s3Endpoint(ctx, cfg); err != nil {
			return nil, err
		}
		if d.endpoint != nil {
			a.put(setEndpoint, d.endpoint.String())
		}
	}
	region := a.settings[setRegion]
	if region == "" {
		region = cfg.Region
	}
	if region == "" {
		region = "us-east-1"
	}
	switch a.settings[setStyle] {
	case "virtual":
		d.virtual = true
	case "":
		// The cloud's certificates are for one name below s3.REGION.
		d.virtual = d.endpoint == nil && !strings.Contains(a.name, ".")
	}
	if a.settings[setRequesterPays] != "" {
		d.pays = []string{"requester"}
	}
	d.url = a.String()
	d.keys = newAWSKeys(cfg, a.settings[setAnonymous] != "", opts.Keys)
	d.move(region)
	return &remote{url: d.url, dialect: d, transport: transport, ranges: true}, nil
}

// s3Endpoint is the server that environment or files of settings name for S3, or nil.
func s3Endpoint(ctx context.Context, cfg aws.Config) (*url.URL, error) {
	value := ""
	for _, source := range cfg.ConfigSources {
		if s, ok := source.(interface {
			GetServiceBaseEndpoint(ctx context.Context, sdkID string) (string, bool, error)
		}); ok && value == "" {
			if v, found, err := s.GetServiceBaseEndpoint(ctx, "S3"); err == nil && found {
				value = v
			}
		}
	}
	if value == "" && cfg.BaseEndpoint != nil {
		value = *cfg.BaseEndpoint
	}
	if value == "" {
		return nil, nil //nolint:nilnil // nil is the cloud's own
	}
	u, err := parseEndpoint(value)
	if err != nil {
		return nil, fmt.Errorf("AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL or endpoint_url of the profile: %w", err)
	}
	return u, nil
}

// caBundle is the file of AWS_CA_BUNDLE or of the profile's ca_bundle; "" if neither names one.
func caBundle(cfg aws.Config) string {
	for _, source := range cfg.ConfigSources {
		switch s := source.(type) {
		case config.EnvConfig:
			if s.CustomCABundle != "" {
				return s.CustomCABundle
			}
		case config.SharedConfig:
			if s.CustomCABundle != "" {
				return s.CustomCABundle
			}
		}
	}
	return ""
}

// move has requests go to a region.
func (d *s3) move(region string) {
	p := &s3Place{region: region}
	if d.endpoint != nil {
		p.base = *d.endpoint
	} else {
		domain := "amazonaws.com"
		if strings.HasPrefix(region, "cn-") {
			domain = "amazonaws.com.cn"
		}
		p.base = url.URL{Scheme: schemeHTTPS, Host: "s3." + region + "." + domain}
	}
	if d.virtual {
		p.base.Host = d.bucket + "." + p.base.Host
	} else {
		p.base.Path += "/" + d.bucket
	}
	d.place.Store(p)
}

// target implements dialect.
func (d *s3) target(r *request) url.URL {
	u := d.place.Load().base
	if r.key != "" {
		withKey(&u, r.key)
	} else if u.Path == "" {
		u.Path = "/"
	}
	return u
}

// withKey puts a key behind the path of a URL, encoded as signatures have it: all but letters, digits and "-._~/".
func withKey(u *url.URL, key string) {
	if !plain(key) {
		u.RawPath = u.EscapedPath() + "/" + escape(key)
	}
	u.Path += "/" + key
}

func plain(key string) bool {
	for i := range len(key) {
		if !unreserved(key[i]) {
			return false
		}
	}
	return true
}

func unreserved(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '.' || c == '_' ||
		c == '~' || c == '/'
}

func escape(key string) string {
	const digits = "0123456789ABCDEF"
	b := make([]byte, 0, len(key)+32)
	for i := range len(key) {
		if c := key[i]; unreserved(c) {
			b = append(b, c)
		} else {
			b = append(b, '%', digits[c>>4], digits[c&15])
		}
	}
	return string(b)
}

// wanted implements dialect.
func (d *s3) wanted(r *request, v schema.ObjectVersion) error {
	if v.ETag != "" {
		r.header["If-Match"] = []string{quote(v.ETag)}
	}
	if v.ID != "" {
		r.query = url.Values{"versionId": {v.ID}}
	}
	return nil
}

// condition implements dialect.
func (d *s3) condition(r *request, c Condition) error { return r.ifETag(c, d.url) }

// version implements dialect.
func (d *s3) version(h http.Header) schema.ObjectVersion {
	v := schema.ObjectVersion{ETag: unquote(first(h, "Etag")), ID: first(h, "X-Amz-Version-Id")}
	if v.ID == "null" { // the bucket keeps no versions at present
		v.ID = ""
	}
	return v
}

func first(h http.Header, canonical string) string {
	if v := h[canonical]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// made implements dialect.
func (d *s3) made(h http.Header, _ []byte) (schema.ObjectVersion, error) { return d.version(h), nil }

// parse implements dialect.
func (d *s3) parse(body []byte, date time.Time) (page, error) { return parseXML(body, date) }

// page implements dialect.
func (d *s3) page(r *request, opts ListOptions, token string) {
	r.query.Set("list-type", "2")
	r.query.Set("encoding-type", "url")
	if opts.Prefix != "" {
		r.query.Set("prefix", opts.Prefix)
	}
	if opts.Delimiter != "" {
		r.query.Set("delimiter", opts.Delimiter)
	}
	if token != "" {
		r.query.Set("continuation-token", token)
	} else if opts.After != "" {
		r.query.Set("start-after", opts.After)
	}
}

// sign implements dialect.
func (d *s3) sign(ctx context.Context, r *http.Request, body []byte) error {
	if d.pays != nil {
		r.Header["X-Amz-Request-Payer"] = d.pays
	}
	keys, err := d.keys.get(ctx)
	if err != nil {
		return errorf(schema.ErrDenied, "credentials of AWS for %s: %v", d.url, err)
	}
	if keys == nil {
		return nil
	}
	sum := emptySum
	switch {
	case len(body) == 0:
	case r.URL.Scheme == schemeHTTPS:
		sum = unsigned
	default:
		s := sha256.Sum256(body)
		sum = hex.EncodeToString(s[:])
	}
	r.Header["X-Amz-Content-Sha256"] = []string{sum}
	at := time.Now().Add(time.Duration(d.skew.Load()))
	if err := d.signer.SignHTTP(ctx, *keys, r, sum, "s3", d.place.Load().region, at); err != nil {
		return errorf(schema.ErrInvalid, "%s: a request cannot be signed: %v", d.url, err)
	}
	return nil
}

// refused implements dialect.
func (d *s3) refused(r *request, a *answer) (again bool, err error) {
	region := a.header.Get("X-Amz-Bucket-Region")
	if region == "" && (a.code == "AuthorizationHeaderMalformed" || a.code == "PermanentRedirect" ||
		a.code == "IllegalLocationConstraintException") {
		region = a.region
	}
	wrongPlace := a.status/100 == 3 || a.status == http.StatusBadRequest
	switch {
	case wrongPlace && region != "" && region != d.place.Load().region:
		d.move(region)
		return true, says(d.url, schema.ErrInvalid, r, a, "the bucket is in region "+region)
	case a.status/100 == 3:
		hint := "it redirects, to where it does not say"
		if region != "" {
			hint = "it redirects, though requests are for its region " + region
		}
		if to, err := url.Parse(a.header.Get("Location")); err == nil && to.Host != "" {
			hint = fmt.Sprintf("it redirects to %s://%s: give that as %s", to.Scheme, to.Host, setEndpoint)
		}
		return false, says(d.url, schema.ErrInvalid, r, a, hint)
	case a.code == "RequestTimeTooSkewed",
		// HEAD has no body that says so.
		a.code == "" && r.method == http.MethodHead && a.status == http.StatusForbidden && d.far(a.header.Get("Date")):
		return d.follow(a.header.Get("Date")), says(d.url, schema.ErrDenied, r, a, "the machine's clock is wrong")
	case a.code == "ExpiredToken", a.code == "ExpiredTokenException", a.code == "TokenRefreshRequired",
		// HEAD has no body that says so.
		a.code == "" && r.method == http.MethodHead && (a.status == http.StatusBadRequest ||
			a.status == http.StatusForbidden) && d.keys.end():
		return d.keys.renew(), says(d.url, schema.ErrDenied, r, a, "the credentials have expired")
	case a.code == "InvalidObjectState":
		return false, says(d.url, schema.ErrNotSupported, r, a, "it is archived (Glacier): restore it first")
	case a.status == http.StatusBadRequest && strings.Contains(a.message, "Server Side Encryption"):
		return false, says(d.url, schema.ErrNotSupported, r, a, "it is encrypted with a key that its owner has to send "+
			"(SSE-C)")
	case a.code == "NoSuchBucket":
		return false, says(d.url, schema.ErrNotFound, r, a, "")
	case a.code == "SlowDown" && a.status != http.StatusServiceUnavailable:
		return false, &ThrottledError{Bucket: d.url, Key: r.key, Status: a.status}
	case a.status == http.StatusForbidden:
		return false, says(d.url, schema.ErrDenied, r, a, d.keys.hint())
	}
	return false, nil
}

// far reports whether a server's clock is further from that of requests than S3 allows.
func (d *s3) far(date string) bool {
	at, err := http.ParseTime(date)
	return err == nil && (time.Until(at)-time.Duration(d.skew.Load())).Abs() > 14*time.Minute
}

// follow takes the server's clock for the machine's.
func (d *s3) follow(date string) bool {
	at, err := http.ParseTime(date)
	if err != nil {
		return false
	}
	skew := time.Until(at)
	if skew.Abs() > maxSkew {
		return false
	}
	d.skew.Store(int64(skew))
	return true
}

// awsKeys are the credentials of S3: given ones, none, or those that AWS's library finds and renews.
type awsKeys struct {
	anonymous bool
	given     *aws.Credentials
	cache     *aws.CredentialsCache
	// role says that nothing was configured, so that only the machine's role is left to ask for.
	role bool

	mu      sync.Mutex
	none    error            // why there are no credentials; requests are not signed then
	nextTry time.Time        // when they are looked for again
	renewed *aws.Credentials // those that were given up last, as expired

	used atomic.Pointer[aws.Credentials] // those of the newest request
}

func newAWSKeys(cfg aws.Config, anonymous bool, given *Keys) *awsKeys {
	k := &awsKeys{anonymous: anonymous}
	if given != nil {
		k.given = &aws.Credentials{AccessKeyID: given.ID, SecretAccessKey: given.Secret, SessionToken: given.Token}
		return k
	}
	if anonymous || cfg.Credentials == nil {
		k.anonymous = true
		return k
	}
	k.role = aws.IsCredentialsProvider(cfg.Credentials, (*ec2rolecreds.Provider)(nil))
	var ok bool
	if k.cache, ok = cfg.Credentials.(*aws.CredentialsCache); !ok {
		k.cache = aws.NewCredentialsCache(cfg.Credentials)
	}
	return k
}

// get returns credentials, or nil where requests are not signed.
func (k *awsKeys) get(ctx context.Context) (*aws.Credentials, error) {
	if k.given != nil || k.anonymous {
		return k.given, nil
	}
	if k.role {
		k.mu.Lock()
		none := k.none != nil && time.Now().Before(k.nextTry)
		k.mu.Unlock()
		if none {
			return nil, nil
		}
	}
	c, err := k.cache.Retrieve(ctx)
	if err != nil {
		if !k.role || ctx.Err() != nil {
			return nil, err
		}
		// Nothing is configured and the machine has no role: a public bucket can be read all the same.
		k.mu.Lock()
		k.none, k.nextTry = err, time.Now().Add(refreshAhead)
		k.mu.Unlock()
		return nil, nil
	}
	if last := k.used.Load(); last == nil || last.AccessKeyID != c.AccessKeyID || last.SessionToken != c.SessionToken {
		k.used.Store(&c)
	}
	return &c, nil
}

// end reports whether the credentials may have expired.
func (k *awsKeys) end() bool {
	c := k.used.Load()
	return c != nil && c.CanExpire
}

// renew gives credentials up that a server calls expired, and reports whether others may be had. The same ones are
// given up once.
func (k *awsKeys) renew() bool {
	c := k.used.Load()
	if k.cache == nil || c == nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.renewed == c {
		return false
	}
	k.renewed = c
	k.cache.Invalidate()
	return true
}

// hint says what is known of why a request was denied.
func (k *awsKeys) hint() string {
	if k.anonymous {
		return "the request was not signed, as " + setAnonymous + "=true wants"
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.none != nil {
		return "no credentials were found (environment, profiles, role of the machine), so the request was not signed"
	}
	return ""
}
