package watch

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/flowkeep/flowkeep/api/wellknown"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// conditionTimeout bounds a request.
const conditionTimeout = 5 * time.Second

// Conditions writes the condition FlowkeepNetworkProblem of Nodes.
type Conditions struct{ Client kubernetes.Interface }

// Marked returns the Nodes with the condition.
func (c *Conditions) Marked(ctx context.Context) (nodes []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, conditionTimeout)
	defer cancel()
	list, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("list Nodes: %w", err)
	}
	for i := range list.Items {
		for _, condition := range list.Items[i].Status.Conditions {
			if condition.Type == wellknown.ConditionNetworkProblem && condition.Status == corev1.ConditionTrue {
				nodes = append(nodes, list.Items[i].Name)
			}
		}
	}
	return nodes, nil
}

// Set writes the condition; an empty reason clears it. A deleted Node is ignored.
func (c *Conditions) Set(ctx context.Context, node, reason, message string) error {
	ctx, cancel := context.WithTimeout(ctx, conditionTimeout)
	defer cancel()
	now := metav1.Now()
	condition := corev1.NodeCondition{
		Type:               wellknown.ConditionNetworkProblem,
		Status:             corev1.ConditionTrue,
		Reason:             reason,
		Message:            message,
		LastHeartbeatTime:  now,
		LastTransitionTime: now,
	}
	if reason == "" {
		condition.Status, condition.Reason = corev1.ConditionFalse, "FlowkeepNoProblem"
		condition.Message = "no node reports a problem of the network about this Node"
	}
	status := map[string]any{"conditions": []corev1.NodeCondition{condition}}
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	_, err = c.Client.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{FieldManager: "flowkeep-netmaster"}, "status")
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write condition %s of Node %s: %w", wellknown.ConditionNetworkProblem, node, err)
	}
	return nil
}
