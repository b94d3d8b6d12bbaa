package edgeapi

import (
	"context"
	"errors"
	"fmt"
	"mime"
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// write answers create, update, patch, delete and deletecollection. The Backend decides by the
// class of the write: it is applied here and waits for the link in the outbox, or it passes
// through. A pod's write always passes through: the resource version in it may have been read here.
func (s *Server) write(w http.ResponseWriter, r *http.Request, info *request.RequestInfo) {
	ctx := r.Context()
	identity := identityFrom(ctx)
	if identity.Token != "" && info.Verb == "create" || httpstream.IsUpgradeRequest(r) {
		s.pass(w, r) // the outbox is the node's own; kube-apiserver authorizes and answers a pod's write
		return
	}
	body, err := readBody(r)
	if err != nil {
		writeError(w, r, err)
		return
	}
	if err := s.spend(r, len(body)); err != nil {
		writeError(w, r, err)
		return
	}
	contentType := r.Header.Get("Content-Type")
	query := r.URL.Query()
	resource := schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource}
	write := metamanager.Write{
		Verb:         info.Verb,
		Ref:          object.Ref{Resource: resource, Namespace: info.Namespace, Name: info.Name},
		Subresource:  info.Subresource,
		ContentType:  contentType,
		Accept:       r.Header.Get("Accept"),
		Body:         body,
		Path:         r.URL.EscapedPath(),
		Query:        query,
		FieldManager: query.Get("fieldManager"),
		Caller:       identity.caller(),
	}
	if info.Verb == "patch" {
		mediaType, _, err := mime.ParseMediaType(contentType)
		if err != nil {
			writeError(w, r, apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, "patch", resource.GroupResource(), info.Name,
				fmt.Sprintf("the content type of a patch can't be read: %v", err), 0, true))
			return
		}
		write.PatchType = types.PatchType(mediaType)
	}
	into := s.backend.Write
	if s.config.Register != nil && isRegistration(write) {
		into = s.config.Register
	}
	result, err := into(ctx, write)
	if err != nil {
		writeError(w, r, s.registered(r, write, err))
		return
	}
	s.learnToken(ctx, write, result)
	s.writeResult(w, r, resource, result)
}

// learnToken reads the token that the kubelet is given for a pod of this device. A token requested
// for a vault does not have the API's audience, and kube-apiserver would not take it.
func (s *Server) learnToken(ctx context.Context, write metamanager.Write, result metamanager.Result) {
	if !write.Caller.Kubelet || write.Subresource != "token" || result.Response == nil {
		return
	}
	var asked, given authenticationv1.TokenRequest
	decoder := scheme.Codecs.UniversalDeserializer()
	if _, _, err := decoder.Decode(write.Body, nil, &asked); err != nil || len(asked.Spec.Audiences) > 0 {
		return
	}
	if _, _, err := decoder.Decode(result.Response.GetBody(), nil, &given); err == nil && given.Status.Token != "" {
		s.grants.learn(ctx, given.Status.Token)
		s.learnIssuer(ctx, given.Status.Token)
	}
}

func (s *Server) writeResult(w http.ResponseWriter, r *http.Request, resource schema.GroupVersionResource, result metamanager.Result) {
	code := result.Code
	if code == 0 {
		code = http.StatusOK
	}
	scope := s.scopes.of(r.Context(), resource)
	encode := func(gv schema.GroupVersion, o runtime.Object) {
		responsewriters.WriteObjectNegotiated(scope.Serializer, negotiation.DefaultEndpointRestrictions, gv, w, r, code, o, false)
	}
	switch {
	case result.Response != nil:
		writeAnswer(w, result.Response)
	case result.Status != nil:
		encode(schema.GroupVersion{Version: "v1"}, result.Status)
	case result.Object != nil:
		o, err := object.Decode(*result.Object)
		if err != nil {
			writeError(w, r, err)
			return
		}
		encode(scope.Kind.GroupVersion(), o)
	default:
		writeError(w, r, apierrors.NewInternalError(errors.New("the write has no answer")))
	}
}

// registered replaces the refusal of the kubelet's first write without a link by the answer that it
// would get with one. A kubelet creates its Node at each start and uses the existing one on
// AlreadyExists; on any other error it retries and does not report its status. The cached Node is
// the existing one.
func (s *Server) registered(r *http.Request, write metamanager.Write, err error) error {
	ref := write.Ref
	if !isRegistration(write) || !apierrors.IsServiceUnavailable(err) {
		return err
	}
	ref.Name = s.config.NodeName
	if _, getErr := s.backend.Get(r.Context(), ref, write.Caller); getErr != nil {
		return err
	}
	return apierrors.NewAlreadyExists(ref.Resource.GroupResource(), ref.Name)
}

// isRegistration reports whether a write is the kubelet's first.
func isRegistration(w metamanager.Write) bool {
	return w.Caller.Kubelet && w.Verb == "create" && w.Subresource == "" && w.Ref.Resource.GroupResource().String() == "nodes"
}
