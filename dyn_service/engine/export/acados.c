/* Discrete dynamics for acados: model.dyn_ext_fun_type = "generic". The lines above have the robot's numbers.
 *
 *     x_next = f(x, u, p),   x = [q; v], u = tau, p = [dt; other inputs of `step`, if they were exported]
 *
 * acados owns all vectors and matrices. The workspace is on the stack, so stages may be computed in parallel.
 */

#include "acados/utils/external_function_generic.h"
#include "blasfeo_d_aux.h"

static double *entries(void *argument)
{
    const struct blasfeo_dvec_args *vector = argument;
    return vector->x->pa + vector->xi;
}

int DISC_FUN(void **in, void **out, void *parameters) /* in: x, u; out: x_next */
{
    const double *q = entries(in[0]), *v = q + NV, *tau = entries(in[1]), *p = parameters;
    double *next = entries(out[0]), w[STEP_W];
    return STEP(INPUTS, next, next + NV, w);
}

int DISC_FUN_JAC(void **in, void **out, void *parameters) /* out: x_next, its Jacobian by [u; x], transposed */
{
    const double *q = entries(in[0]), *v = q + NV, *tau = entries(in[1]), *p = parameters;
    const struct blasfeo_dmat_args *jacobian = out[1];
    double *next = entries(out[0]), by_x[4 * NV * NV], by_u[2 * NV * NV], w[DERIVATIVES_W];
    int status = DERIVATIVES(INPUTS, next, next + NV, by_x, by_u, w);
    /* BLASFEO reads matrices by columns: those by rows are the transposed ones. */
    blasfeo_pack_dmat(NV, 2 * NV, by_u, NV, jacobian->A, jacobian->ai, jacobian->aj);
    blasfeo_pack_dmat(2 * NV, 2 * NV, by_x, 2 * NV, jacobian->A, jacobian->ai + NV, jacobian->aj);
    return status;
}
