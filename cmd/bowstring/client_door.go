package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// tokenVariable holds the token of a client. There is no flag for it: what is on
// a command line, everybody on the machine can read.
const tokenVariable = "BOWSTRING_TOKEN" //nolint:gosec // the name of one

// clientFlags say how a command comes in at a server.
type clientFlags struct {
	TokenFile  string `setting:"" type:"path" placeholder:"FILE" help:"File with the token for --server (default: the token in BOWSTRING_TOKEN)."`
	ServerCA   string `name:"server-ca" setting:"" type:"path" placeholder:"FILE" help:"Roots of the certificate of a --server grpc+tls://…, as PEM (default: the system's)."`
	ClientCert string `setting:"" type:"path" placeholder:"FILE" help:"Certificate to show to it, as PEM."`
	ClientKey  string `setting:"" type:"path" placeholder:"FILE" help:"Its private key, as PEM."`
}

// dialOptions are those of a connection to a server at addr (HOST:PORT).
func (f *clientFlags) dialOptions(addr string, encrypted bool) ([]grpc.DialOption, error) {
	token, err := f.token()
	if err != nil {
		return nil, err
	}
	var options []grpc.DialOption
	if encrypted {
		config, err := f.tls()
		if err != nil {
			return nil, err
		}
		options = append(options, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	} else {
		if f.ClientCert != "" {
			return nil, usagef("--client-cert is for a --server grpc+tls://%s", addr)
		}
		options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))
	}
	if token == "" {
		return options, nil
	}
	host, _, err := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); !encrypted && (err != nil || host != "localhost" && (ip == nil || !ip.IsLoopback())) {
		return nil, usagef("a token would go to %s for everybody on the way to read: use --server grpc+tls://%s", addr,
			addr)
	}
	return append(options, grpc.WithPerRPCCredentials(bearer(token))), nil
}

// token is what the server is to know the caller by, if anything.
func (f *clientFlags) token() (string, error) {
	if f.TokenFile == "" {
		return strings.TrimSpace(os.Getenv(tokenVariable)), nil
	}
	b, err := os.ReadFile(f.TokenFile)
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	token := strings.TrimSpace(string(b))
	if token == "" || strings.ContainsAny(token, " \t\r\n") {
		return "", fmt.Errorf("--token-file: %s does not hold one token", f.TokenFile)
	}
	return token, nil
}

// tls is whom to trust, and what to show.
func (f *clientFlags) tls() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.ServerCA != "" {
		pem, err := os.ReadFile(f.ServerCA)
		if err != nil {
			return nil, fmt.Errorf("--server-ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--server-ca: there is no certificate in %s", f.ServerCA)
		}
	}
	if (f.ClientCert == "") != (f.ClientKey == "") {
		return nil, usagef("--client-cert and --client-key belong together: give both, or neither")
	}
	if f.ClientCert != "" {
		pair, err := tls.LoadX509KeyPair(f.ClientCert, f.ClientKey)
		if err != nil {
			return nil, errors.Join(errors.New("--client-cert, --client-key"), err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// bearer is a token that goes with every call.
type bearer string

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials. dialOptions
// has looked where it goes.
func (bearer) RequireTransportSecurity() bool { return false }

// String keeps it out of what is printed.
func (bearer) String() string { return "a token" }
