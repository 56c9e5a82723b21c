package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"bowstring/fetch/object"
	"bowstring/schema"
)

// bucketRight is the credentials by which a server reads some buckets, and the tenants
// that may read them. It has the names of credentials and never the secrets themselves.
// Secrets are read when a bucket is opened.
type bucketRight struct {
	// Bucket is a bucket's URL, or the beginning of URLs followed by a star.
	Bucket string `yaml:"bucket"`
	// At most one of these is set. If none is, the credentials are those of the
	// environment.
	Profile    string `yaml:"profile"`     // a section of AWS's files
	KeysFile   string `yaml:"keys_file"`   // a JSON file of id, secret and token
	GoogleFile string `yaml:"google_file"` // a JSON file of Google's, as of a service account
	// Tenants are the tenants that may read the data; nil for all.
	Tenants []string `yaml:"tenants"`
}

// bucketRights are the entries of a file, in its order. The first entry that fits a
// bucket's URL applies. They are constant after readBucketRights.
type bucketRights []bucketRight

// readBucketRights reads the file of --bucket-credentials. Unknown fields are errors,
// because a misspelled tenants would open the bucket to all.
func readBucketRights(path string) (bucketRights, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var file struct {
		Buckets bucketRights `yaml:"buckets"`
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: %s: %w", schema.ErrInvalid, path, err)
	}
	if len(file.Buckets) == 0 {
		return nil, fmt.Errorf("%w: %s has no buckets: want \"buckets:\" and a list, such as "+
			"\"- {bucket: s3://photos, profile: vision, tenants: [vision]}\"", schema.ErrInvalid, path)
	}
	for i := range file.Buckets {
		if err := file.Buckets[i].check(); err != nil {
			return nil, fmt.Errorf("%w: %s: entry %d: %w", schema.ErrInvalid, path, i+1, err)
		}
	}
	return file.Buckets, nil
}

// check returns an error for an entry that could never apply, or that is ambiguous. An
// empty list of tenants is an error too: it could mean none or all.
func (r *bucketRight) check() error {
	scheme, _, ok := strings.Cut(r.Bucket, "://")
	if !ok {
		return fmt.Errorf("bucket: %q is no URL of a bucket: want one as s3://photos, or s3://team-* for all that begin so", r.Bucket)
	}
	if _, _, err := object.SplitURL(strings.TrimSuffix(r.Bucket, "*")); err != nil && !strings.HasSuffix(r.Bucket, "*") {
		return fmt.Errorf("bucket: %w", err)
	}
	set := 0
	for _, one := range []struct{ name, value, scheme string }{
		{"profile", r.Profile, "s3"}, {"keys_file", r.KeysFile, ""}, {"google_file", r.GoogleFile, "gs"},
	} {
		if one.value == "" {
			continue
		}
		if set++; one.scheme != "" && one.scheme != scheme {
			return fmt.Errorf("%s is of buckets that begin with %s://, and not of %s", one.name, one.scheme, r.Bucket)
		}
	}
	if set > 1 {
		return fmt.Errorf("%s: profile, keys_file and google_file exclude each other", r.Bucket)
	}
	if r.Tenants != nil && len(r.Tenants) == 0 {
		return fmt.Errorf("%s: tenants is empty: want names, or nothing for all tenants", r.Bucket)
	}
	return nil
}

// fits reports whether an entry applies to a bucket. A star never matches an endpoint.
// Otherwise a dataset could name a server of its own, and signatures or tokens would be
// sent to it.
func (r *bucketRight) fits(url string) bool {
	begins, all := strings.CutSuffix(r.Bucket, "*")
	if !all {
		return r.Bucket == url
	}
	rest, ok := strings.CutPrefix(url, begins)
	return ok && !strings.Contains(rest, "endpoint=")
}

// of returns the entry of a bucket, and nil if the credentials are those of the
// environment.
func (l bucketRights) of(url string) *bucketRight {
	i := slices.IndexFunc(l, func(r bucketRight) bool { return r.fits(url) })
	if i < 0 {
		return nil
	}
	return &l[i]
}

// limits reports whether any entry restricts the tenants.
func (l bucketRights) limits() bool {
	return slices.ContainsFunc(l, func(r bucketRight) bool { return r.Tenants != nil })
}

// mayRead returns an error that wraps schema.ErrDenied if the tenant may not read the
// data of a bucket.
func (l bucketRights) mayRead(tenant, url string) error {
	if r := l.of(url); r != nil && r.Tenants != nil && !slices.Contains(r.Tenants, tenant) {
		return fmt.Errorf("%w: samples of it are in %s, which tenant %s may not read: ask the operator to name the tenant in "+
			"the file of --bucket-credentials", schema.ErrDenied, url, schema.Quote(tenant))
	}
	return nil
}

// options adds the credentials of a bucket to o. It reads the file at each call, so that
// a replaced file counts for the next bucket that is opened.
func (l bucketRights) options(url string, o object.Options) (object.Options, error) {
	r := l.of(url)
	if r == nil {
		return o, nil
	}
	o.Profile, o.GoogleFile = r.Profile, r.GoogleFile
	if r.KeysFile != "" {
		text, err := os.ReadFile(r.KeysFile)
		if err != nil {
			return o, fmt.Errorf("%w: keys of %s: %w", schema.ErrDenied, url, err)
		}
		var keys struct {
			ID     string `json:"id"`
			Secret string `json:"secret"`
			Token  string `json:"token"`
		}
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		if d.Decode(&keys) != nil || keys.Secret == "" && keys.Token == "" {
			// The decoder's error is left out: it could contain a part of a secret.
			return o, fmt.Errorf("%w: keys of %s: %s has no object with \"secret\" (and \"id\") or \"token\"", schema.ErrDenied, url,
				r.KeysFile)
		}
		o.Keys = &object.Keys{ID: keys.ID, Secret: keys.Secret, Token: keys.Token}
	}
	return o, nil
}
