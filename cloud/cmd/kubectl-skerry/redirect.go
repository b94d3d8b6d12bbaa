package main

import (
	"net/http"
	"regexp"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// core are the subresources of pods that cloudcore answers for. Before them there may be the path
// of a gateway to several clusters.
var core = regexp.MustCompile(`^(.*)/api/v1(/namespaces/[^/]+/pods/[^/]+/(?:log|exec|attach|portforward))$`)

// aggregated is where cloudcore does.
const aggregated = "${1}/apis/subresources.skerry.io/v1alpha1${2}"

// redirect sends requests for those to cloudcore's API; all others go where they went.
func redirect(to http.RoundTripper) http.RoundTripper { return &redirected{to} }

type redirected struct{ to http.RoundTripper }

var _ utilnet.RoundTripperWrapper = (*redirected)(nil)

// RoundTrip implements http.RoundTripper.
func (r *redirected) RoundTrip(req *http.Request) (*http.Response, error) {
	if core.MatchString(req.URL.Path) {
		req = req.Clone(req.Context()) // a RoundTripper leaves its request as it was
		req.URL.Path, req.URL.RawPath = core.ReplaceAllString(req.URL.Path, aggregated), ""
	}
	return r.to.RoundTrip(req)
}

// WrappedRoundTripper implements utilnet.RoundTripperWrapper.
func (r *redirected) WrappedRoundTripper() http.RoundTripper { return r.to }
