package ca

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/api/wellknown"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Names of objects and keys.
const (
	// SecretKey is the Secret's key of the CA. BundleKey is the key of its certificates in the ConfigMap of the same
	// name.
	SecretKey = "authority.json"
	BundleKey = "ca.crt"
	// injected marks an APIService with a CA bundle managed by another program.
	injected = wellknown.AnnotationInjected
)

// Cluster is a Store in Kubernetes. Safe for concurrent use.
type Cluster struct {
	client          kubernetes.Interface
	namespace, name string
	skew            atomic.Int64
}

// ClusterConfig configures a Cluster.
type ClusterConfig struct {
	Rest *rest.Config
	// Namespace and Name are those of the Secret and the ConfigMap.
	Namespace, Name string
}

// Rate limit of a separate client, as requests of all nodes may arrive at once.
const (
	queries = 100
	burst   = 200
)

// NewCluster returns a store. It sends no request yet.
func NewCluster(cfg ClusterConfig) (*Cluster, error) {
	c := &Cluster{namespace: cfg.Namespace, name: cfg.Name}
	own := rest.CopyConfig(cfg.Rest)
	own.QPS, own.Burst = queries, burst
	own.Wrap(func(next http.RoundTripper) http.RoundTripper { return &dated{next, &c.skew} })
	var err error
	c.client, err = kubernetes.NewForConfig(own)
	return c, err
}

// dated measures the clock skew of responses.
type dated struct {
	http.RoundTripper
	skew *atomic.Int64
}

// RoundTrip assumes that a response was sent in the middle of the round trip.
func (d *dated) RoundTrip(r *http.Request) (*http.Response, error) {
	asked := time.Now()
	resp, err := d.RoundTripper.RoundTrip(r)
	if err != nil {
		return resp, err
	}
	if at, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		d.skew.Store(int64(at.Sub(asked.Add(time.Since(asked) / 2).Round(0))))
	}
	return resp, nil
}

// Skew returns how far the API server's clock was ahead at its last response.
func (c *Cluster) Skew() time.Duration { return time.Duration(c.skew.Load()) }

// Authority reads the Secret.
func (c *Cluster) Authority(ctx context.Context) (Stored, error) {
	s, err := c.client.CoreV1().Secrets(c.namespace).Get(ctx, c.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return Stored{}, nil
	}
	if err != nil {
		return Stored{}, err
	}
	return Stored{s.Data[SecretKey], s}, nil
}

// PutAuthority writes the Secret.
func (c *Cluster) PutAuthority(ctx context.Context, old Stored, text []byte) error {
	api := c.client.CoreV1().Secrets(c.namespace)
	s, ok := old.Version.(*corev1.Secret)
	if !ok {
		made := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: c.name, Namespace: c.namespace},
			Type:       corev1.SecretTypeOpaque,
			Data:       map[string][]byte{SecretKey: text},
		}
		_, err := api.Create(ctx, made, metav1.CreateOptions{})
		return c.writeError(err, "Secret")
	}
	s = s.DeepCopy()
	if s.Data == nil {
		s.Data = map[string][]byte{}
	}
	s.Data[SecretKey] = text
	_, err := api.Update(ctx, s, metav1.UpdateOptions{})
	return c.writeError(err, "Secret")
}

// Published reads the ConfigMap.
func (c *Cluster) Published(ctx context.Context) (Stored, error) {
	m, err := c.client.CoreV1().ConfigMaps(c.namespace).Get(ctx, c.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return Stored{}, nil
	}
	if err != nil {
		return Stored{}, err
	}
	return Stored{[]byte(m.Data[BundleKey]), m}, nil
}

// Publish writes the ConfigMap.
func (c *Cluster) Publish(ctx context.Context, old Stored, text []byte) error {
	api := c.client.CoreV1().ConfigMaps(c.namespace)
	m, ok := old.Version.(*corev1.ConfigMap)
	if !ok {
		made := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: c.name, Namespace: c.namespace},
			Data:       map[string]string{BundleKey: string(text)},
		}
		_, err := api.Create(ctx, made, metav1.CreateOptions{})
		return c.writeError(err, "ConfigMap")
	}
	m = m.DeepCopy()
	if m.Data == nil {
		m.Data = map[string]string{}
	}
	m.Data[BundleKey] = string(text)
	_, err := api.Update(ctx, m, metav1.UpdateOptions{})
	return c.writeError(err, "ConfigMap")
}

// writeError converts conflicts to ErrChanged, and adds a remedy to other errors.
func (c *Cluster) writeError(err error, kind string) error {
	switch {
	case apierrors.IsConflict(err),
		apierrors.IsAlreadyExists(err),
		apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return fmt.Errorf("%w: %w", ErrChanged, err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf(
			"%w (netmaster may write the %s %s/%s, but not make it: apply deploy/flowkeep.yaml, which has it "+
				"without contents)",
			err,
			kind,
			c.namespace,
			c.name,
		)
	}
	return err
}

// Trust writes the CA bundle to the APIService if netmaster is registered.
func (c *Cluster) Trust(ctx context.Context, bundle []byte) error {
	return c.trustService(ctx, bundle)
}

// apiService is the used part of an APIService, whose types are in a separate module.
type apiService struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		Service *struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
		} `json:"service"`
		CABundle []byte `json:"caBundle"`
	} `json:"spec"`
}

const apiServicePath = "/apis/apiregistration.k8s.io/v1/apiservices/" + inspect.APIVersion + "." + inspect.Group

func (c *Cluster) trustService(ctx context.Context, bundle []byte) error {
	api := c.client.Discovery().RESTClient()
	raw, err := api.Get().AbsPath(apiServicePath).DoRaw(ctx)
	if apierrors.IsNotFound(err) {
		return nil
	}
	var s apiService
	if err == nil {
		err = json.Unmarshal(raw, &s)
	}
	switch {
	case err != nil:
		return fmt.Errorf("read the APIService: %w", err)
	case s.Spec.Service == nil || s.Spec.Service.Name != inspect.Service ||
		s.Spec.Service.Namespace != inspect.ServiceNamespace:
		return errors.New("the APIService is not of netmaster's Service")
	case bytes.Equal(s.Spec.CABundle, bundle) || s.Metadata.Annotations[injected] != "":
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": s.Metadata.ResourceVersion},
		"spec":     map[string]any{"caBundle": bundle},
	})
	if err != nil {
		return err
	}
	if err := api.Patch(types.MergePatchType).AbsPath(apiServicePath).Body(patch).Do(ctx).Error(); err != nil &&
		!apierrors.IsConflict(err) {
		return fmt.Errorf("tell the APIService: %w", err)
	}
	return nil
}
