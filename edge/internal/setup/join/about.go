package join

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/skerry-io/skerry/common/pki"
)

// Ask finds the token's cloud and asks for its description, once. It makes no change, and no token
// leaves the device. About is nil if the cloud is too old for the request. Of the options Server,
// Token and Clock count. The errors are those of Join.
func Ask(ctx context.Context, o Options) (ca *x509.Certificate, about *pki.About, err error) {
	base, host, err := serverURL(o.Server)
	if err != nil {
		return nil, nil, err
	}
	ca, err = findCA(ctx, o, base, host)
	if err != nil {
		return nil, nil, err
	}
	transport := newTransport(pki.ClientTLS(pki.Client{Roots: pki.Pool(ca), Now: o.Clock.Now, Protocols: protocols()}))
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base+pki.AboutPath, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("making the request: %w", err)
	}
	response, err := client(transport, dialTimeout+handshakeTimeout).Do(request)
	if err != nil {
		return nil, nil, explain(err, o, host)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return ca, nil, nil
	}
	about = new(pki.About)
	if err := json.NewDecoder(io.LimitReader(response.Body, pki.MaxJoinBody)).Decode(about); err != nil {
		return nil, nil, fmt.Errorf("%w: the description sent by %s is not valid JSON: %w", ErrNotCloudcore, o.Server, err)
	}
	return ca, about, nil
}
