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

// bucketRight says by what credentials a server reads some buckets, and for which tenants. It names credentials, and has
// none.
type bucketRight struct {
	// Bucket is a bucket's URL, or the beginning of URLs and a star.
	Bucket string `yaml:"bucket"`
	// At most one of these is set; if none is, credentials are those of the environment.
	Profile    string `yaml:"profile"`     // a section of AWS's files
	KeysFile   string `yaml:"keys_file"`   // a JSON file of id, secret and token
	GoogleFile string `yaml:"google_file"` // a JSON file of Google's, as of a service account
	// Tenants are those that may read the data there; nil: all.
	Tenants []string `yaml:"tenants"`
}

// bucketRights are those of a file. The first one that a bucket's URL fits counts.
type bucketRights []bucketRight

// readBucketRights reads the file of --bucket-credentials.
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

// fits reports whether a bucket is one of these. A star stands for no endpoint: what is signed, or sent as a token, would
// go to a server that the file does not name.
func (r *bucketRight) fits(url string) bool {
	begins, all := strings.CutSuffix(r.Bucket, "*")
	if !all {
		return r.Bucket == url
	}
	rest, ok := strings.CutPrefix(url, begins)
	return ok && !strings.Contains(rest, "endpoint=")
}

// of is what holds for a bucket; nil for what the environment has.
func (l bucketRights) of(url string) *bucketRight {
	i := slices.IndexFunc(l, func(r bucketRight) bool { return r.fits(url) })
	if i < 0 {
		return nil
	}
	return &l[i]
}

// limits reports whether some buckets are for some tenants alone.
func (l bucketRights) limits() bool {
	return slices.ContainsFunc(l, func(r bucketRight) bool { return r.Tenants != nil })
}

// mayRead is a schema.ErrDenied unless a tenant may read the data of a bucket.
func (l bucketRights) mayRead(tenant, url string) error {
	if r := l.of(url); r != nil && r.Tenants != nil && !slices.Contains(r.Tenants, tenant) {
		return fmt.Errorf("%w: samples of it are in %s, which tenant %s may not read: ask the operator to name the tenant in "+
			"the file of --bucket-credentials", schema.ErrDenied, url, schema.Quote(tenant))
	}
	return nil
}

// options are those that a bucket is opened with. Files are read now.
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
			// The cause is left out: it would be a part of a secret.
			return o, fmt.Errorf("%w: keys of %s: %s has no object with \"secret\" (and \"id\") or \"token\"", schema.ErrDenied, url,
				r.KeysFile)
		}
		o.Keys = &object.Keys{ID: keys.ID, Secret: keys.Secret, Token: keys.Token}
	}
	return o, nil
}
