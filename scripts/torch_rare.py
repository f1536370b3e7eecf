"""Exports small programs of less usual operations and compares them with PyTorch.

    python scripts/torch_rare.py target/debug/partition [NAME...]

Each program is exported strictly as it is, and otherwise decomposed; the first axis of its inputs is open but where `fixed`
says not. What cannot be exported is told, and counts for nothing.
"""

import sys
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim, export

from torch_export import compare

A = torch.ops.aten
PROGRAMS = {}


def p(name, function, *inputs, fixed=False):
    PROGRAMS[name] = (function, inputs, fixed)


def positive(x):
    return x @ x.mT + 2 * torch.eye(x.shape[-1])


r = torch.randn
torch.manual_seed(0)
p("svdvals", lambda x: torch.linalg.svdvals(x), r(3,4,5))
p("svd_s", lambda x: torch.linalg.svd(x, full_matrices=False)[1], r(3,4,5))
p("svd_s_2", lambda x: torch.svd(x)[1], r(4,5), fixed=True)
p("matrix_norm_nuc", lambda x: torch.linalg.matrix_norm(x, 'nuc'), r(3,4,5))
p("matrix_norm_2", lambda x: torch.linalg.matrix_norm(x, 2), r(3,4,5))
p("lu_factor_solve", lambda x,b: torch.linalg.lu_solve(*torch.linalg.lu_factor(x), b), r(3,4,4)+4*torch.eye(4), r(3,4,2))
p("lu_factor", lambda x: torch.linalg.lu_factor(x), r(3,4,4)+4*torch.eye(4))
p("lu", lambda x: torch.linalg.lu(x), r(3,4,4))
p("solve_ex", lambda x,b: torch.linalg.solve(x,b), r(3,4,4)+4*torch.eye(4), r(3,4,2))
p("inv_ex", lambda x: torch.linalg.inv_ex(x)[0], r(3,4,4)+4*torch.eye(4))
p("slogdet", lambda x: torch.linalg.slogdet(x), r(3,4,4))
p("logdet", lambda x: torch.logdet(positive(x)), r(3,4,4))
p("chol_solve", lambda x,b: torch.cholesky_solve(b, torch.linalg.cholesky(positive(x))), r(3,4,4), r(3,4,2))
p("chol_solve_upper", lambda x,b: torch.cholesky_solve(b, torch.linalg.cholesky(positive(x)).mT, upper=True), r(3,4,4), r(3,4,2))
p("cholesky_ex", lambda x: torch.linalg.cholesky_ex(positive(x))[0], r(3,4,4))
p("tri_solve", lambda x,b: torch.linalg.solve_triangular(x.tril()+3*torch.eye(4), b, upper=False), r(3,4,4), r(3,4,2))
p("triangular_solve", lambda x,b: torch.triangular_solve(b, x.triu()+3*torch.eye(4))[0], r(3,4,4), r(3,4,2))
p("eigvalsh", lambda x: torch.linalg.eigvalsh(positive(x)), r(3,4,4))
p("eigh_vals", lambda x: torch.linalg.eigh(positive(x))[0], r(3,4,4))
p("lstsq", lambda x,b: torch.linalg.lstsq(x,b)[0], r(3,6,4), r(3,6,2))
p("multi_dot", lambda x: torch.linalg.multi_dot([x[0], x[0].mT, x[1]]), r(3,4,5))
p("householder", lambda x: torch.linalg.qr(x)[1].abs(), r(3,5,4))
p("vecdot", lambda x,y: torch.linalg.vecdot(x,y), r(3,4), r(3,4))
p("cross", lambda x,y: torch.linalg.cross(x,y), r(4,3), r(4,3))
p("matrix_exp", lambda x: torch.matrix_exp(x), r(3,3,3))
p("pinv_herm", lambda x: torch.linalg.pinv(x), r(3,4,3))
# copies
p("view_copy", lambda x: torch.view_copy(x, (-1, 20))*2, r(3,4,5))
p("permute_copy", lambda x: torch.permute_copy(x, (1,0,2))*2, r(3,4,5))
p("transpose_copy", lambda x: torch.transpose_copy(x,1,2)+1, r(3,4,5))
p("t_copy", lambda x: torch.t_copy(x)+1, r(3,4))
p("squeeze_copy", lambda x: torch.squeeze_copy(x,1)+1, r(3,1,4))
p("squeeze_copy0", lambda x: torch.squeeze_copy(x)+1, r(3,1,4), fixed=True)
p("unsqueeze_copy", lambda x: torch.unsqueeze_copy(x,1)+1, r(3,4))
p("expand_copy", lambda x: torch.expand_copy(x[:,None],(-1,3,-1))+1, r(3,4))
p("slice_copy", lambda x: torch.slice_copy(x,1,0,3)+1, r(3,4))
p("select_copy", lambda x: torch.select_copy(x,1,2)+1, r(3,4))
p("split_copy", lambda x: torch.split_copy(x,2,1), r(3,4))
p("split_with_sizes_copy", lambda x: torch.split_with_sizes_copy(x,[1,3],1), r(3,4))
p("unbind_copy", lambda x: torch.unbind_copy(x,1), r(3,4))
p("diagonal_copy", lambda x: torch.diagonal_copy(x,0,1,2)+1, r(3,4,5))
p("alias_copy", lambda x: torch.alias_copy(x)+1, r(3,4))
p("detach_copy", lambda x: torch.detach_copy(x)+1, r(3,4))
p("unfold_copy", lambda x: torch.unfold_copy(x,1,2,1)+1, r(3,5))
p("as_strided_copy", lambda x: torch.as_strided_copy(x,(2,3),(4,1),1)+1, r(3,4), fixed=True)
p("narrow_copy", lambda x: torch.narrow_copy(x,1,1,2)+1, r(3,4))
p("view_as_real_copy", lambda x: torch.view_as_real_copy(torch.complex(x,x)), r(3,4))
p("lift_fresh_copy", lambda x: A.lift_fresh_copy(x)+1, r(3,4))
p("reshape_copy", lambda x: A._reshape_copy(x,[-1,2])+1, r(3,4), fixed=True)
# rank 0
s = torch.tensor(1.5)
p("r0_softmax", lambda x: torch.softmax(x,0)+x, s, fixed=True)
p("r0_log_softmax", lambda x: torch.log_softmax(x,-1)+x, s, fixed=True)
p("r0_topk", lambda x: torch.topk(x,1), s, fixed=True)
p("r0_sort", lambda x: torch.sort(x), s, fixed=True)
p("r0_argsort", lambda x: torch.argsort(x), s, fixed=True)
p("r0_cumsum", lambda x: torch.cumsum(x,0), s, fixed=True)
p("r0_cumprod", lambda x: torch.cumprod(x,0), s, fixed=True)
p("r0_cummax", lambda x: torch.cummax(x,0), s, fixed=True)
p("r0_logcumsumexp", lambda x: torch.logcumsumexp(x,0), s, fixed=True)
p("r0_max", lambda x: torch.max(x,0), s, fixed=True)
p("r0_argmax", lambda x: torch.argmax(x,0), s, fixed=True)
p("r0_kthvalue", lambda x: torch.kthvalue(x,1), s, fixed=True)
p("r0_median", lambda x: torch.median(x,0), s, fixed=True)
p("r0_mode", lambda x: torch.mode(x,0), s, fixed=True)
p("r0_flip", lambda x: torch.flip(x,[]) + 1, s, fixed=True)
p("r0_gather", lambda x: torch.gather(x,0,torch.tensor(0))+1, s, fixed=True)
p("r0_scatter", lambda x: x.scatter(0,torch.tensor(0),2.0)+1, s, fixed=True)
p("r0_index_select", lambda x: x.index_select(0,torch.tensor([0]))+1, s, fixed=True)
p("r0_sum_dim", lambda x: x.sum(0)+x.mean(-1)+x.amax(0)+x.prod(0), s, fixed=True)
p("r0_std", lambda x: x.std(0, correction=0)+x.logsumexp(0), s, fixed=True)
p("r0_all", lambda x: (x>0).all(0), s, fixed=True)
p("r0_unsqueeze", lambda x: x.unsqueeze(0).squeeze(0).expand(3), s, fixed=True)
p("r0_repeat", lambda x: x.repeat(2,3), s, fixed=True)
p("r0_cat", lambda x: torch.stack([x,x+1]), s, fixed=True)
p("r0_nonzero", lambda x: x.reshape(-1).flatten(), s, fixed=True)
p("r0_norm", lambda x: torch.linalg.vector_norm(x), s, fixed=True)
p("r0_diff_quantile", lambda x: torch.quantile(x,0.5), s, fixed=True)
p("r0_unique", lambda x: torch.atleast_2d(x), s, fixed=True)
# open batch
p("block_diag_open", lambda x,y: torch.block_diag(x,y), r(3,4), r(2,5))
p("as_strided_open", lambda x: x.as_strided((x.shape[0],2),(4,1)), r(3,4))
p("as_strided_open2", lambda x: x.as_strided((x.shape[0],2,3),(12,4,1),1), r(3,12))
# others
p("addbmm", lambda x,y,z: torch.addbmm(z,x,y), r(3,4,5), r(3,5,2), r(4,2), fixed=True)
p("addmv", lambda x,y,z: torch.addmv(z,x,y), r(3,4), r(4), r(3), fixed=True)
p("chain_matmul", lambda x: torch.chain_matmul(x, x.t(), x), r(3,4))
p("hypot", lambda x,y: torch.hypot(x,y), r(3,4), r(3,4))
p("nextafter", lambda x,y: torch.nextafter(x,y), r(3,4), r(3,4))
p("ldexp", lambda x: torch.ldexp(x, torch.tensor([1,2,3,-1])), r(3,4))
p("frexp", lambda x: torch.frexp(x), r(3,4))
p("float_power", lambda x: torch.float_power(x.abs(), 2.5), r(3,4))
p("heaviside", lambda x,y: torch.heaviside(x,y), r(3,4), r(3,4))
p("fmod_rem", lambda x: torch.fmod(x,0.3)+torch.remainder(x,-0.7), r(3,4))
p("signbit", lambda x: torch.signbit(x), r(3,4))
p("sgn", lambda x: torch.sgn(x), r(3,4))
p("rad2deg", lambda x: torch.rad2deg(x)+torch.deg2rad(x), r(3,4))
p("nan_to_num", lambda x: torch.nan_to_num(x/0*0+x, nan=1.), r(3,4))
p("logaddexp", lambda x,y: torch.logaddexp(x,y)+torch.logaddexp2(x,y), r(3,4), r(3,4))
p("mvlgamma", lambda x: torch.mvlgamma(x.abs()+3,2), r(3,4))
p("polygamma", lambda x: torch.polygamma(1,x.abs()+1), r(3,4))
p("zeta", lambda x: torch.special.zeta(x.abs()+2, x.abs()+1), r(3,4))
p("igamma", lambda x: torch.special.gammainc(x.abs()+1, x.abs()+0.5), r(3,4))
p("bessel_j0", lambda x: torch.special.bessel_j0(x)+torch.special.bessel_j1(x), r(3,4))
p("erfcx", lambda x: torch.special.erfcx(x), r(3,4))
p("entr", lambda x: torch.special.entr(x.abs()), r(3,4))
p("xlog1py", lambda x: torch.special.xlog1py(x, x.abs()), r(3,4))
p("legendre", lambda x: torch.special.legendre_polynomial_p(x.clamp(-1,1), 3), r(3,4))
p("hermite", lambda x: torch.special.hermite_polynomial_h(x, 3), r(3,4))
p("chebyshev", lambda x: torch.special.chebyshev_polynomial_t(x, 3), r(3,4))
p("cov", lambda x: torch.cov(x), r(3,4), fixed=True)
p("corrcoef", lambda x: torch.corrcoef(x), r(3,4), fixed=True)
p("cov_open", lambda x: torch.cov(x.t()), r(7,4))
p("histogram", lambda x: torch.histc(x, 5, -2, 2), r(30))
p("bucketize", lambda x: torch.bucketize(x, torch.tensor([-1.,0.,1.])), r(3,4))
p("take", lambda x: torch.take(x, torch.tensor([0,5,7])), r(3,4))
p("take_along", lambda x: torch.take_along_dim(x, x.argsort(1), 1), r(3,4))
p("put", lambda x: torch.ops.aten.put(x, torch.tensor([0,5]), torch.tensor([9.,8.])), r(3,4), fixed=True)
p("index_put_acc", lambda x: x.index_put((torch.tensor([0,0,1]),), torch.ones(3,4), accumulate=True), r(3,4))
p("scatter_add", lambda x: torch.zeros(3,4).scatter_add(0, torch.tensor([[0,1,2,0]]), x), r(3,4), fixed=True)
p("scatter_reduce", lambda x: x.scatter_reduce(1, torch.tensor([[0,1,1,0],[0,1,1,0],[2,2,2,2]]), x, "amax"), r(3,4), fixed=True)
p("select_scatter", lambda x: x.select_scatter(torch.ones(3),1,2), r(3,4), fixed=True)
p("diagonal_scatter", lambda x: x.diagonal_scatter(torch.ones(3)), r(3,4), fixed=True)
p("as_strided_scatter", lambda x: x.as_strided_scatter(torch.ones(2,2),(2,2),(1,2)), r(3,4), fixed=True)
p("slice_scatter", lambda x: x.slice_scatter(torch.ones(3,2),1,1,3), r(3,4), fixed=True)
p("tensor_split", lambda x: torch.tensor_split(x,3,1), r(3,7))
p("dsplit", lambda x: torch.dsplit(x,[1,3]), r(3,4,5))
p("unflatten", lambda x: x.unflatten(1,(2,-1)), r(3,8))
p("column_stack", lambda x,y: torch.column_stack([x,y]), r(3), r(3,2))
p("cartesian", lambda x,y: torch.cartesian_prod(x,y), r(3), r(2), fixed=True)
p("combinations", lambda x: torch.combinations(x,2), r(4), fixed=True)
p("tile", lambda x: torch.tile(x,(2,1,2)), r(3,4))
p("rot90", lambda x: torch.rot90(x,1,[1,2]), r(3,4,5))
p("fliplr", lambda x: torch.fliplr(x)+torch.flipud(x), r(3,4))
p("roll2", lambda x: torch.roll(x,(1,-1),(1,2)), r(3,4,5))
p("cummin", lambda x: torch.cummin(x,1), r(3,4))
p("logcumsumexp", lambda x: torch.logcumsumexp(x,1), r(3,4))
p("cumtrapz", lambda x: torch.cumulative_trapezoid(x,dim=1), r(3,4))
p("gradient", lambda x: torch.gradient(x,dim=1)[0], r(3,5))
p("nansum", lambda x: torch.nansum(x,1)+torch.nanmean(x,1), r(3,4))
p("aminmax", lambda x: torch.aminmax(x,dim=1), r(3,4))
p("std_mean", lambda x: torch.std_mean(x,1), r(3,4))
p("pairwise_dist", lambda x,y: F.pairwise_distance(x,y), r(3,4), r(3,4))
p("cdist1", lambda x,y: torch.cdist(x,y,p=1.0), r(3,4,5), r(3,2,5))
p("cos_sim", lambda x,y: F.cosine_similarity(x,y,dim=1), r(3,4), r(3,4))
p("local_response", lambda x: F.local_response_norm(x,3), r(2,5,6))
p("lp_pool", lambda x: F.lp_pool1d(x,2.0,2), r(2,3,6))
p("lp_pool2", lambda x: F.lp_pool2d(x.abs(),3.0,2), r(2,3,6,6))
p("frac_like_adaptive", lambda x: F.adaptive_avg_pool2d(x,(3,2)), r(2,3,7,5))
p("max_pool3d", lambda x: F.max_pool3d(x,2), r(2,3,4,4,4))
p("avg_pool_div", lambda x: F.avg_pool2d(x,2,divisor_override=3), r(2,3,4,4))
p("celu", lambda x: F.celu(x,0.7)+F.selu(x)+F.hardshrink(x)+F.softshrink(x)+F.tanhshrink(x)+F.threshold(x,0.1,2.), r(3,4))
p("rrelu", lambda x: F.rrelu(x)+F.logsigmoid(x)+F.softsign(x)+F.hardtanh(x), r(3,4))
p("mish", lambda x: F.mish(x)+F.softmin(x,1), r(3,4))
p("glu", lambda x: F.glu(x,1), r(3,4))
p("gumbelless", lambda x: F.normalize(x,p=3.0,dim=1), r(3,4))
p("pad_reflect", lambda x: F.pad(x,(1,2),'reflect'), r(2,3,5))
p("pad_rep3", lambda x: F.pad(x,(1,0,1,1,0,1),'replicate'), r(2,3,2,3,3))
p("pixel_unshuffle", lambda x: F.pixel_unshuffle(x,2), r(2,3,4,4))
p("one_hot", lambda x: F.one_hot(x.argmax(1),5), r(3,4))
p("ctc", lambda x: F.ctc_loss(F.log_softmax(x,2), torch.tensor([[1,2],[2,1]]), torch.tensor([5,5]), torch.tensor([2,2])), r(5,2,4), fixed=True)
p("gaussian_nll", lambda x,y: F.gaussian_nll_loss(x,y,y.abs()+0.5), r(3,4), r(3,4))
p("bce_pos", lambda x,y: F.binary_cross_entropy_with_logits(x,y.sigmoid(),pos_weight=torch.tensor([1.,2.,3.,4.])), r(3,4), r(3,4))
p("multilabel_soft", lambda x,y: F.multilabel_soft_margin_loss(x,(y>0).float()), r(3,4), r(3,4))
p("triplet", lambda x,y,z: F.triplet_margin_loss(x,y,z,swap=True), r(3,4), r(3,4), r(3,4))
p("bitwise", lambda x: (x.to(torch.int32) & 5) ^ ((x*7).to(torch.int32) | 2), r(3,4)*4)
p("bitshift", lambda x: torch.bitwise_left_shift((x*4).to(torch.int32).abs(), 2), r(3,4))
p("floor_div", lambda x: torch.floor_divide(x,0.3), r(3,4))
p("div_trunc", lambda x: torch.div(x,0.3,rounding_mode='trunc'), r(3,4))
p("isin", lambda x: torch.isin((x*2).to(torch.int64), torch.tensor([0,1])), r(3,4))
p("isfinite", lambda x: torch.isfinite(x/ (x>0)), r(3,4))
p("isposinf", lambda x: torch.isposinf(x/(x>0))|torch.isneginf(x/(x>0)), r(3,4))
p("allclose_where", lambda x: torch.where(torch.isclose(x,x+1e-9), x, 0), r(3,4))
p("masked_fill_t", lambda x: x.masked_fill(x>0, torch.tensor(2.)), r(3,4))
p("masked_scatter", lambda x: x.masked_scatter(x>0, torch.arange(12.).reshape(3,4)), r(3,4), fixed=True)
p("searchsorted", lambda x: torch.searchsorted(torch.tensor([-1.,0.,1.]), x, right=True), r(3,4))
p("tril_idx", lambda x: x[torch.tril_indices(3,3)[0], torch.tril_indices(3,3)[1]], r(3,4), fixed=True)
p("vander", lambda x: torch.vander(x,3), r(4))
p("diagflat", lambda x: torch.diagflat(x), r(2,2), fixed=True)
p("diag_embed", lambda x: torch.diag_embed(x,1), r(3,4))
p("trace", lambda x: torch.trace(x), r(4,4), fixed=True)
p("kron", lambda x: torch.kron(x, torch.ones(2,2)), r(3,4))
p("tensordot", lambda x,y: torch.tensordot(x,y,([1,2],[0,1])), r(3,4,5), r(4,5,2))
p("bilinear", lambda x,y: F.bilinear(x,y,torch.ones(2,4,5)), r(3,4), r(3,5))
p("emb_bag", lambda x: F.embedding_bag(torch.tensor([[0,1],[1,2]]), x, mode='max'), r(3,4), fixed=True)
p("msort", lambda x: torch.msort(x), r(3,4))
p("sort_desc_stable", lambda x: torch.sort(x.round(), dim=1, descending=True, stable=True), r(3,6))
p("topk_small", lambda x: torch.topk(x,2,dim=1,largest=False), r(3,6))
p("nanmedian", lambda x: torch.nanmedian(x,1), r(3,5))
p("unique_cons", lambda x: torch.unique_consecutive(x.round()), torch.tensor([1.,1.,2.,2.,3.]), fixed=True)
p("renorm", lambda x: torch.renorm(x,2,0,1.0), r(3,4))
p("trapezoid", lambda x: torch.trapezoid(x,dim=1), r(3,4))
p("channel_shuffle", lambda x: F.channel_shuffle(x,2), r(2,4,3,3))
p("native_dropout_like", lambda x: F.alpha_dropout(x,0.5,False)+F.feature_alpha_dropout(x,0.5,False), r(3,4))
p("mha", None, r(3,4,8))
p("gru_cell", None, r(3,4))
p("transformer_layer", None, r(3,4,8))
p("weight_norm", None, r(3,4))
p("spectral_norm", None, r(3,4))
p("im2col", lambda x: F.unfold(x,2), r(2,3,4,4))
p("fold", lambda x: F.fold(x,(4,4),2), r(2,12,9))
p("grid", lambda x: F.grid_sample(x, torch.linspace(-1,1,18).reshape(1,3,3,2).expand(2,3,3,2), align_corners=False), r(2,3,4,4), fixed=True)
p("affine_grid", lambda x: F.affine_grid(x,(2,3,4,4),False), r(2,2,3), fixed=True)
p("upsample_bicubic", lambda x: F.interpolate(x,scale_factor=2,mode='bicubic'), r(2,3,4,4))
p("stft", lambda x: torch.stft(x,8,return_complex=True,window=torch.hann_window(8)).abs(), r(2,32))
p("fft", lambda x: torch.fft.rfft(x).abs(), r(3,8))
p("hfft", lambda x: torch.fft.ifft(torch.fft.fft(x)).real, r(3,8))
p("polar", lambda x,y: torch.polar(x.abs(),y).real, r(3,4), r(3,4))
p("complex_mul", lambda x,y: (torch.complex(x,y)*torch.complex(y,x)).imag, r(3,4), r(3,4))
p("angle", lambda x,y: torch.angle(torch.complex(x,y)), r(3,4), r(3,4))
p("scan_like", lambda x: torch.stack([x[:,i].cumsum(0) for i in range(2)]), r(3,4))
p("clamp_t", lambda x,y: torch.clamp(x,min=-y.abs(),max=y.abs()), r(3,4), r(3,4))
p("lerp_t", lambda x,y: torch.lerp(x,y,y), r(3,4), r(3,4))
p("addcdiv", lambda x,y: torch.addcdiv(x,x,y.abs()+1,value=2)+torch.addcmul(x,x,y,value=0.5), r(3,4), r(3,4))
p("rsub", lambda x: torch.rsub(x,2.0,alpha=3), r(3,4))
p("dot_vdot", lambda x,y: torch.dot(x,y)+torch.vdot(x,y)+torch.inner(x,y), r(4), r(4), fixed=True)
p("count_nonzero", lambda x: torch.count_nonzero(x>0, dim=1), r(3,4))
p("any_dims", lambda x: torch.any(x>0,dim=(1,2)), r(3,4,5))
p("prod_dim", lambda x: torch.prod(x,1), r(3,4))
p("bincount", lambda x: torch.bincount(x.abs().to(torch.int64).clamp(0,3), minlength=4), r(9), fixed=True)
p("multinomialless", lambda x: torch.nn.functional.hardsigmoid(x)+F.hardswish(x)+F.relu6(x), r(3,4))
p("empty_like", lambda x: torch.zeros_like(x)+torch.full_like(x,2)+x.new_ones(x.shape), r(3,4))
p("arange_open", lambda x: x + torch.arange(x.shape[0])[:,None], r(3,4))
p("to_int_div", lambda x: (x*10).to(torch.int64)//3 % 4, r(3,4))
p("conv_tbc", lambda x: torch.conv_tbc(x, torch.ones(2,4,3), torch.zeros(3)), r(5,2,4), fixed=True)
p("conv_trans_dil", lambda x: F.conv_transpose2d(x, torch.ones(3,2,3,3), dilation=2, stride=2, output_padding=1), r(2,3,4,4))
p("rms_norm", lambda x: F.rms_norm(x,(4,)), r(3,4))
p("instance", lambda x: F.instance_norm(x), r(2,3,5))
p("segment", lambda x: torch.segment_reduce(x,'sum',lengths=torch.tensor([1,2])), r(3,4), fixed=True)
p("fake_quant", lambda x: torch.fake_quantize_per_tensor_affine(x,0.1,0,-128,127), r(3,4))
p("chunk_uneven", lambda x: torch.chunk(x,3,1), r(3,7))
p("hsplit", lambda x: torch.hsplit(x,2), r(3,4))
p("swapaxes", lambda x: torch.swapaxes(x,1,2)+1, r(3,4,5))
p("movedim", lambda x: torch.movedim(x,(1,2),(2,1))+1, r(3,4,5))
p("ravel", lambda x: x.ravel(), r(3,4))
p("positive", lambda x: +x + torch.square(x)+torch.reciprocal(x.abs()+1), r(3,4))
p("complex_exp", lambda x: torch.exp(torch.complex(x,x)).imag, r(3,4))
p("masked_softmax", lambda x: torch.softmax(x.masked_fill(x<0,float('-inf')),1).nan_to_num(0), r(3,4))
p("sdpa_gqa", lambda q,k: F.scaled_dot_product_attention(q,k,k,enable_gqa=True), r(2,4,5,3), r(2,2,6,3))


class Program(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


class Cells(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.lstm = nn.GRUCell(4, 5), nn.LSTMCell(4, 5)

    def forward(self, x):
        return self.gru(x), *self.lstm(x)


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.heads(x, x, x)


MODULES = {
    "mha": Heads,
    "gru_cell": Cells,
    "transformer_layer": lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    "weight_norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)),
    "spectral_norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)),
}


def exported(module, inputs, fixed, strict):
    shapes = tuple({0: Dim("rows", min=2, max=64)} if one.dim() else None for one in inputs)
    shapes = None if fixed else ((shapes,) if isinstance(module, Program) else shapes)
    program = export(module, inputs, dynamic_shapes=shapes, strict=strict)
    return program if strict else program.run_decompositions()


def main(binary, wanted):
    good = bad = 0
    for name, (function, inputs, fixed) in PROGRAMS.items():
        if wanted and name not in wanted:
            continue
        module = (Program(function) if function else MODULES[name]()).eval()
        for strict in (True, False):
            try:
                program = exported(module, inputs, fixed, strict)
            except Exception as error:
                print(f"{name}: is not exported: {str(error).splitlines()[0][:100]}", flush=True)
                continue
            done = compare(binary, program, inputs, module, f"{name} {'exported' if strict else 'core'}")
            good, bad = good + done, bad + (not done)
    print("equal", good, "not", bad)


warnings.filterwarnings("ignore")
torch.set_num_threads(1)
main(sys.argv[1], sys.argv[2:])
