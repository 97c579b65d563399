package access

import (
	"encoding/json"
	"net/http"

	"github.com/flowkeep/flowkeep/api/inspect"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// discovery serves the discovery documents of an aggregated API, which also show that netmaster is available.
// Resources have neither list nor delete among their verbs, so that clients that process all objects of a cluster
// skip them.
func (s *Server) discovery(w http.ResponseWriter, r *http.Request) bool {
	version := metav1.GroupVersionForDiscovery{
		GroupVersion: inspect.Group + "/" + inspect.APIVersion,
		Version:      inspect.APIVersion,
	}
	group := metav1.APIGroup{
		TypeMeta:         metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"},
		Name:             inspect.Group,
		Versions:         []metav1.GroupVersionForDiscovery{version},
		PreferredVersion: version,
	}
	var v any
	switch {
	case r.Method != http.MethodGet:
		return false
	case r.URL.Path == inspect.Prefix:
		v = s.resources(version.GroupVersion)
	case r.URL.Path == "/apis/"+inspect.Group:
		v = group
	case r.URL.Path == "/openapi/v2": // there are no objects to describe
		v = map[string]any{
			"swagger": "2.0",
			"info":    map[string]string{"title": inspect.Group, "version": inspect.APIVersion},
			"paths":   map[string]any{},
		}
	case r.URL.Path == "/openapi/v3":
		v = map[string]any{"paths": map[string]any{}}
	default:
		return false
	}
	body, err := json.Marshal(v)
	if err != nil {
		s.fail(w, err)
		return true
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body)
	return true
}

func (s *Server) resources(version string) metav1.APIResourceList {
	list := metav1.APIResourceList{
		TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
		GroupVersion: version,
		APIResources: []metav1.APIResource{},
	}
	for _, kind := range s.cfg.Questions.Kinds() {
		namespaced := inspect.NamespaceOf(&inspect.Question{
			Kind: kind,
			ID:   "namespace/name",
			From: "namespace/name",
			To:   &inspect.Target{Name: "namespace/name"},
		}) != ""
		list.APIResources = append(list.APIResources, metav1.APIResource{
			Name:         kind,
			SingularName: kind,
			Namespaced:   namespaced,
			Kind:         "Answer",
			Verbs:        metav1.Verbs{"get", "create", "watch"},
		})
	}
	return list
}
